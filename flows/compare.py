"""Flow `compare`: every arm of a study with every seed, each run a task, then the table and the page.

A run's work happens in a child process, as `crl compare` does it; the task waits for it, reports its rounds in its log
and is retried where trying again may help. What is complete never runs again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from crl.config.load import runs_root
from crl.errors import CrlError
from crl.lab.study.files import PAGE, write_study
from crl.lab.study.plan import PlannedRun, chosen, plan_runs, study_directory
from crl.lab.study.results import StudyResult
from crl.lab.study.runs import Children, default_jobs, incomplete, only_one, prepare, run_one
from crl.lab.study.table import study_markdown
from crl.report.markdown import as_text, code
from flows.parameters import EVERYTHING, StudyChoice, study_from
from flows.present import label
from flows.schedule import deployable
from tasks.artifacts import PAGES, publish
from tasks.failures import failed, located, log_error
from tasks.stage import is_transient

TABLE, LINK = "study", "study-page"
"""Kinds of a study's artifacts."""
_TICK_SECONDS = 0.5
Jobs = Annotated[int, Field(ge=0, le=256)]
Seeds = list[Annotated[int, Field(ge=0)]]


@flow(name="compare", persist_result=False, validate_parameters=False)
@deployable
def compare(study: StudyChoice, jobs: Jobs = 0, arms: list[str] = EVERYTHING, seeds: Seeds = EVERYTHING) -> Any:
    """Run every arm of a study with every seed, then compare them. Returns the files of the result.

    A run that fails leaves the others alone; the flow run fails at its end and names it. Fails with StudyIncomplete,
    LeaseHeld where another process works on the study, FrozenMethodChanged, RecordDamaged or BadInput.

    Args:
        study: A file of `conf/study/`, or another study file on the worker's machine.
        jobs: Runs at a time; 0 takes as many as the cores hold with the threads of the method; one with a GPU.
        arms: These arms only; none means every arm.
        seeds: These seeds only; none means every seed.
    """
    try:
        return _compare(study, jobs, arms or None, seeds or None)
    except CrlError as error:
        log_error(error)
        return failed(error)


def _compare(
    choice: str | Path, jobs: int, arms: Sequence[str] | None, seeds: Sequence[int] | None
) -> dict[str, list[str]]:
    study, root = study_from(choice), runs_root()
    planned = plan_runs(study, root)
    wanted = chosen(planned, arms, seeds)
    directory = study_directory(study, root)
    label(study.name, f"{len({run.arm for run in wanted})} arms, {len({run.seed for run in wanted})} seeds")
    missing = [run for run in wanted if not run.is_finished()]
    if missing:  # before the directory of the study is made
        prepare(missing, study.warm_starts, lambda line: get_run_logger().info("%s", line))
    get_run_logger().info("%d runs, %d of them finished", len(wanted), len(wanted) - len(missing))
    with only_one(directory):
        failures: dict[str, CrlError] = {}
        if missing:
            failures = _run(missing, min(jobs or default_jobs(missing), len(missing)))
        result, written = write_study(study, planned, directory)
    _publish(result, directory)
    if failures:
        raise incomplete(failures, directory)
    return {"files": [str(path) for path in written]}


def _run(missing: Sequence[PlannedRun], jobs: int) -> dict[str, CrlError]:
    """Every run as a task, `jobs` at a time; returns the errors of those that failed, by run name."""
    children = Children()
    by_place = {(run.arm, run.seed): run for run in missing}

    # The record decides what is complete; Prefect's caches must not.
    @task(
        name="study run", task_run_name="{arm}-s{seed}", cache_policy=NO_CACHE, persist_result=False,
        retries=1, retry_condition_fn=is_transient,
    )  # fmt: skip
    def study_run(arm: str, seed: int) -> str | State[Any]:
        run = by_place[arm, seed]
        try:
            run_one(run, children, _tell)
        except CrlError as error:
            located(error, run.name)
            log_error(error)
            return failed(error)
        return str(run.path)

    failures: dict[str, CrlError] = {}
    pool: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=jobs)
    with pool as runner:
        futures = {run.name: runner.submit(study_run, {"arm": run.arm, "seed": run.seed}) for run in missing}
        try:
            for name, future in futures.items():
                while not future.state.is_final():
                    # A moment at a time: an interruption of this thread must get its turn.
                    future.wait(_TICK_SECONDS)
                try:
                    future.result()
                except CrlError as error:
                    failures[name] = error
        except BaseException:
            children.stop()
            raise
    return failures


def _tell(run: PlannedRun, event: dict[str, Any]) -> None:
    """One event of a run, in the log of its task."""
    logger = get_run_logger()
    if event["event"] == "round":
        rates = "".join(f", {arm.replace('_', ' ')} {rate}" for arm, rate in sorted(event["success"].items()))
        logger.info("round %d of %d%s", event["round"], run.rounds, rates)
    elif event["event"] == "retry":
        logger.warning("%s is tried again: %s", event["stage"], event["reason"])
    elif event["event"] == "waits":
        logger.info("%s", event["text"])
    elif event["event"] == "note":
        logger.warning("%s", event["text"])


def _publish(result: StudyResult, directory: Path) -> None:
    """The table and the link as artifacts; what cannot be published is a warning, the files are there."""
    base = os.environ.get(PAGES)
    page = (directory / PAGE).absolute()
    link = [f"# Page of {as_text(result.name)}", f"The file: {code(str(page))}"]
    if base:
        link.insert(1, f"[Open the page]({base.rstrip('/')}/{directory.name}/{PAGE})")
    publish(result.name, result.question, {TABLE: lambda: study_markdown(result), LINK: lambda: "\n\n".join(link)})
