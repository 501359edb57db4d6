"""Events of our own on the Prefect server, for automations: a complete round, an alarm of it, a run that stops.

`crl.round.completed`, `crl.alarm` and `crl.stopped` are about the experiment (`crl.experiment.<name>`) and name the
flow run. They follow no other event, so an automation hears of them at once. What cannot be sent is a warning and no
more: the record has it all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from crl.records import Metric, rows_of
from crl.run.directory import RunDirectory
from crl.run.head import head_after
from tasks.artifacts import report_address, results

ROUND_COMPLETED, ALARM, STOPPED = "crl.round.completed", "crl.alarm", "crl.stopped"
EXPERIMENT = "crl.experiment"


def tell_round(run_path: str | Path, round_number: int) -> None:
    """Send what automations may wait for of a complete round."""
    try:
        path = Path(run_path)
        about = _about(path, round_number)
        alarms = _alarms(RunDirectory.open(path), round_number)
        _emit(ROUND_COMPLETED, about, {}, results=results(path), alarms=[each["alarm"] for each in alarms])
        for each in alarms:
            _emit(ALARM, about, {"crl.metric": each["metric"], "crl.stage": each["stage"]}, **each)
    except Exception as error:
        get_run_logger().warning("the events of round %d could not be sent: %s", round_number, error)


def tell_stop(run_path: str | Path, round_number: int, setting: str, reason: str) -> None:
    """Say that no further round begins after one, by which setting and why."""
    try:
        path = Path(run_path)
        _emit(STOPPED, _about(path, round_number), {"crl.setting": setting}, reason=reason, results=results(path))
    except Exception as error:
        get_run_logger().warning("that the run stopped could not be sent: %s", error)


def _about(path: Path, round_number: int) -> dict[str, Any]:
    return {
        "experiment": path.resolve().name,
        "round": round_number,
        "head": head_after(path, round_number),
        "report": report_address(path),
    }


def _alarms(run: RunDirectory, round_number: int) -> list[dict[str, Any]]:
    return [
        {"stage": stage, "metric": row.name, "value": row.value, "alarm": row.alarm}
        for stage in run.complete_stages(round_number)
        for row in rows_of(Metric, run.read(round_number, stage, Metric))
        if row.alarm is not None
    ]


def _emit(event: str, about: dict[str, Any], labels: dict[str, str], **more: Any) -> None:
    name = about["experiment"]
    emit_event(
        event,
        resource={"prefect.resource.id": f"{EXPERIMENT}.{name}", "prefect.resource.name": name, **labels},
        related=[{"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.role": "flow-run"}],
        payload={**about, **more},
    )
