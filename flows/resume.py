"""Flow `resume`: finish what `train` set out to do on a run and did not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from crl.config import Runtime
from crl.engine.driver import Driver, last_runtime
from crl.run.directory import RunDirectory
from flows.rounds import run_rounds

RunPath = Annotated[Path, Field(description="The run directory.")]


@flow(name="resume", persist_result=False)
def resume(run_path: RunPath, runtime: Runtime | None = None) -> dict[str, Any]:
    """Run what is missing up to the last round that was asked for; says so where nothing is.

    Returns the run's path and the rounds that ran. Raises as `train` does.
    """
    run = RunDirectory.open(run_path)
    with Driver(run, runtime or last_runtime(run.path)) as driver:
        first, last = driver.unfinished(purpose=flow_run.id)
        return {"run": str(run.path), "rounds": run_rounds(driver, first, last)}
