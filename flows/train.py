"""Flow `train`: begin or continue an experiment for some further rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from crl.config import Experiment
from crl.config.load import runs_root
from crl.errors import CrlError
from crl.preflight import check_ready
from crl.run.directory import RunDirectory
from flows.limits import ensure_limit, exclusive
from flows.parameters import NOTHING, ExperimentChoice, Overrides, Rounds, Settings, changed, experiment_from
from flows.present import label, log_precision, rounds_text
from flows.rounds import run_rounds
from flows.schedule import deployable
from tasks.failures import failed, log_error

already_checked: ContextVar[bool] = ContextVar("already_checked", default=False)
"""Whether the caller has held the experiment against this machine: that takes seconds."""
_LONGEST = 200
"""Characters of a changed value in the log."""


@flow(name="train", persist_result=False, validate_parameters=False)
@deployable
def train(
    experiment: ExperimentChoice = "conf/quickstart.yaml",
    rounds: Rounds = 3,
    settings: Settings = NOTHING,
    overrides: Overrides = NOTHING,
) -> Any:
    """Train for so many further rounds; round 0, which prepares, comes before the first.

    A retry of the same flow run finishes the rounds it set out for. Returns the run's path and the rounds that ran.
    Fails with the error of the stage that failed, LeaseHeld, ConcurrencyLimitMissing, RecordDamaged or BadInput.

    Args:
        experiment: A file of `conf/`, another YAML file on the worker's machine, or the fields of an experiment.
            Its name decides which run directory is begun or continued; the method of a run cannot change.
            In a schedule, whatever is left empty is as the deployment has it.
        rounds: Rounds to train beyond those that are complete.
        settings: What people change first. Empty: as the file has it; in a schedule, as the deployment has it.
        overrides: Any other key that differs from the file, by its dotted name, such as
            `{"method.recipe.merge.every": 2, "runtime.shards": 4}`. All keys: docs/config.md. A schedule keeps the
            deployment's keys and changes those it names; the value `"as in the file"` drops a key that the deployment
            sets, here or in its settings.
    """
    try:
        chosen = experiment_from(experiment, settings, overrides)
        _log_choice(chosen.name, experiment, changed(settings, overrides))
        return _train(chosen, rounds)
    except CrlError as error:
        log_error(error)
        return failed(error)


def _train(experiment: Experiment, rounds: int) -> dict[str, Any]:
    label(experiment.name, f"{rounds} round{'' if rounds == 1 else 's'}")
    root = runs_root(experiment)
    path = root / experiment.name
    if not already_checked.get():
        check_ready(experiment, path, rounds)
        log_precision(experiment.method)
    _begin(experiment.name, path)
    run = RunDirectory.create_or_open(experiment, root)
    with exclusive(run, experiment.runtime) as driver:
        first, last = driver.set_target(rounds, purpose=flow_run.id)
        label(experiment.name, rounds_text(first, last))
        if last - max(first - 1, 0) != rounds:
            get_run_logger().warning(
                "this flow run set out for rounds %d to %d, which is what it finishes; its parameters now ask for %d",
                first,
                last,
                rounds,
            )
        return {"run": str(run.path), "rounds": run_rounds(driver, first, last)}


def _log_choice(name: str, source: Any, changes: Mapping[str, Any]) -> None:
    """Which experiment this is: a schedule, its deployment and a file each have a part in that."""
    if isinstance(source, Experiment):  # a command's, which has said so itself
        return
    given = "the fields that were given" if isinstance(source, dict) else str(source)
    told = "".join(f"\n  {key}: {json.dumps(value, default=str)[:_LONGEST]}" for key, value in changes.items())
    get_run_logger().info("experiment %s: %s%s", name, given, f", changed:{told}" if told else "")


def _begin(name: str, path: Path) -> None:
    """The first run of an experiment registers its limit: nobody could have done so before."""
    if path.exists():
        return
    ensure_limit(name)
    if (flow_run.run_count or 0) > 1:
        get_run_logger().warning(
            "this flow run has run before, but there is no record at %s: it starts from the beginning", path
        )
