"""Flow `evaluate`: held-out seeds with the weights of a round, with and without its bank; the run is not changed.

The work is done by `crl evaluate` in a process of its own: models are loaded there, it can be ended at any moment, and
the numbers are those of the command line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import BaseModel, Field

from crl.errors import CrlError, StageFailed
from crl.records import Evaluation
from crl.report.rates import Rate
from flows.parameters import RunPath, run_from
from flows.present import label
from flows.schedule import superseded
from tasks.failures import failed, log_error, placed

ARTIFACT_KEY = "evaluation"
_KEPT_LINES = 30
_PATIENCE_SECONDS = 5.0


class Seeds(BaseModel):
    """Other held-out seeds than those of the experiment."""

    start: int = Field(2_000_000, ge=0, description="First environment seed; none that was trained on.")
    count: int = Field(32, ge=1, le=100_000, description="How many consecutive seeds a task family.")


Round = Annotated[int, Field(ge=0)]


@flow(name="evaluate", persist_result=False)
def evaluate(run_path: RunPath, round: Round | None = None, seeds: Seeds | None = None) -> Any:
    """Evaluate a round of a run. Returns a row for each task family and arm; the table is among the artifacts.

    Args:
        run_path: The name of an experiment, such as `quickstart`, or the path of a run directory on the worker's
            machine.
        round: Round to evaluate; without one, the latest.
        seeds: Other held-out seeds than those of the experiment.
    """
    if (state := superseded()) is not None:
        return state
    try:
        path = run_from(run_path)
        label(path.name, "evaluate" if round is None else f"evaluate round {round}")
        evaluated: Any = evaluate_round(str(path), round, seeds, return_state=True)
        return evaluated.result()
    except CrlError as error:
        return failed(error)


# The record may have grown since: never from Prefect's cache.
@task(name="evaluate", cache_policy=NO_CACHE, persist_result=False)
def evaluate_round(run_path: str, number: int | None, seeds: Seeds | None) -> list[dict[str, Any]] | State[Any]:
    """Run `crl evaluate` with its lines in the log; an error it ends with becomes a failed state that raises it."""
    with tempfile.TemporaryDirectory(prefix="crl-evaluate-") as folder:
        out = Path(folder) / "evaluation.parquet"
        arguments = [run_path, "--out", str(out)]
        arguments += [] if number is None else ["--round", str(number)]
        arguments += [] if seeds is None else ["--seeds", f"{seeds.start}:{seeds.count}"]
        try:
            _run_command(["evaluate", *arguments])
        except CrlError as error:
            placed(error, "evaluate")
            log_error(error)
            return failed(error)
        rows = summary(out)
    _publish(run_path, number, rows)
    return rows


def summary(path: Path) -> list[dict[str, Any]]:
    """A row for each task family and arm of a file that `crl evaluate --out` wrote."""
    import pyarrow.parquet as pq

    from crl.records import rows_of

    episodes = rows_of(Evaluation, pq.read_table(path))
    rows = []
    for family, arm in sorted({(row.family, row.arm) for row in episodes}):
        mine = [row for row in episodes if (row.family, row.arm) == (family, arm)]
        turns = sum(row.turns for row in mine)
        rate = Rate(sum(row.success for row in mine), len(mine))
        rows.append(
            {
                "family": family,
                "arm": arm.replace("_", " "),
                "episodes": len(mine),
                "won": str(rate),
                "success": round(sum(row.success for row in mine) / len(mine), 4),
                "95 % interval": f"{rate.span} %",
                "actions per game": round(turns / len(mine), 2),
                "invalid actions": round(sum(row.invalid_actions for row in mine) / max(turns, 1), 4),
                "guided": sum(row.guided for row in mine),
            }
        )
    return rows


def _run_command(arguments: list[str]) -> None:
    logger = get_run_logger()
    process = subprocess.Popen(
        [sys.executable, "-m", "crl", *arguments],
        env={**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Its own session: whatever it starts is ended with it.
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if text := line.rstrip():
                logger.info("%s", text)
                lines.append(text)
        code = process.wait()
    finally:
        _end(process)
    if code:
        error = _error_of(code)
        raise error(
            "\n".join(lines[-_KEPT_LINES:]) or f"`crl evaluate` ended with exit code {code} and said nothing",
            where=f"crl {' '.join(arguments)}",
        )


def _error_of(code: int) -> type[CrlError]:
    """The class of our errors that an exit code stands for."""
    from crl.errors import BadInput, DataCheckFailed, LeaseHeld, RecordDamaged

    known: dict[int, type[CrlError]] = {
        each.exit_code: each for each in (BadInput, LeaseHeld, RecordDamaged, DataCheckFailed)
    }
    return known.get(code, StageFailed)


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its children, however this task ends."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)


def _publish(run_path: str, number: int | None, rows: list[dict[str, Any]]) -> None:
    from prefect.artifacts import create_table_artifact

    which = "the latest round" if number is None else f"round {number}"
    try:
        create_table_artifact(
            key=ARTIFACT_KEY, table=rows, description=f"Held-out seeds, {which} of {Path(run_path).name}"
        )
    except Exception as error:  # the numbers are in the log and in the result
        get_run_logger().warning("the table could not be published: %s", error)
