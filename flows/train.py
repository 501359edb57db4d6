"""Flow `train`: begin or continue an experiment for some further rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from crl.config import Experiment
from crl.engine.driver import Driver
from crl.experiment import load_experiment, runs_root
from crl.preflight import check_ready
from crl.run.directory import RunDirectory
from flows.rounds import run_rounds

ExperimentOrFile = Annotated[
    Experiment | Path, Field(description="The experiment itself, or the YAML file that holds it.")
]
Rounds = Annotated[int, Field(ge=1, le=100_000, description="Rounds to train beyond those that are complete.")]


@flow(name="train", persist_result=False)
def train(experiment: ExperimentOrFile, rounds: Rounds = 3) -> dict[str, Any]:
    """Train for so many further rounds; round 0, which prepares, comes before the first.

    A retry of the same flow run finishes the rounds it set out for. Returns the run's path and the rounds that ran.
    Raises the error of the stage that failed, LeaseHeld, RecordDamaged or BadInput.
    """
    if isinstance(experiment, Path):
        experiment = load_experiment(experiment)
    root = runs_root(experiment)
    check_ready(experiment, root / experiment.name, rounds)
    run = RunDirectory.create_or_open(experiment, root)
    with Driver(run, experiment.runtime) as driver:
        first, last = driver.set_target(rounds, purpose=flow_run.id)
        return {"run": str(run.path), "rounds": run_rounds(driver, first, last)}
