"""Flow `resume`: finish what `train` set out to do on a run and did not reach."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from crl.config import Runtime
from crl.engine.targets import last_runtime
from crl.errors import CrlError
from crl.preflight import check_run
from crl.run.directory import RunDirectory
from flows.limits import exclusive
from flows.parameters import RunPath, run_from
from flows.present import label, log_precision, rounds_text
from flows.rounds import run_rounds
from flows.schedule import deployable
from tasks.failures import failed, log_error


@flow(name="resume", persist_result=False, validate_parameters=False)
@deployable
def resume(run_path: RunPath, runtime: Runtime | None = None) -> Any:
    """Run what is missing up to the last round that was asked for; says so where nothing is.

    Returns the run's path and the rounds that ran. Fails as `train` does.

    Args:
        run_path: The name of an experiment, such as `quickstart`, or the path of a run directory on the worker's
            machine.
        runtime: Shards, limits and retention for this time; without, those that the run last set out with.
    """
    try:
        run = RunDirectory.open(run_from(run_path))
        label(run.experiment_name, "resume")
        runtime = runtime or last_runtime(run.path)
        check_run(run, runtime)
        log_precision(run.method)
        with exclusive(run, runtime) as driver:
            first, last = driver.unfinished(purpose=flow_run.id)
            label(
                run.experiment_name, f"resume {rounds_text(first, last)}" if last >= first else "resume, nothing to do"
            )
            return {"run": str(run.path), "rounds": run_rounds(driver, first, last)}
    except CrlError as error:
        log_error(error)
        return failed(error)
