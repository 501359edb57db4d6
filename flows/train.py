"""Flow `train`: begin or continue an experiment for some further rounds. Flow `resume`: finish what a run set out for.

Each round is a child flow, each of its stages a task (`tasks/stage.py`). Where rounds overlap, two child flows run at a
time, each in a thread; they begin in order, which is what Prefect knows them by in a retry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, get_client, tags
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed

from crl.config import Experiment
from crl.config.load import runs_root
from crl.engine.driver import Driver, driver_for
from crl.engine.targets import last_runtime
from crl.errors import CrlError
from crl.preflight import check_ready, check_run
from crl.run.directory import RunDirectory
from flows.approval import wait_for_decision
from flows.deployments import offer_runs
from flows.limits import ensure_limit, exclusive
from flows.parameters import (
    NOTHING,
    ExperimentChoice,
    Overrides,
    Rounds,
    RunPath,
    RuntimeChanges,
    Settings,
    changed,
    experiment_from,
    run_from,
    runtime_from,
)
from flows.present import flow_runs, label, log_precision, present_run, rounds_text, task_runs
from flows.schedule import deployable
from flows.shards import spread_over_tasks
from flows.tidy import end_earlier_attempts, watch_the_others
from tasks.artifacts import finish_page, head_text, publish_failure, publish_results, publish_round
from tasks.events import tell_round, tell_stop
from tasks.failures import failed, log_error
from tasks.stage import stage_task

already_checked: ContextVar[bool] = ContextVar("already_checked", default=False)
"""Whether the caller has held the experiment against this machine: that takes seconds."""
_LONGEST = 200
"""Characters of a changed value in the log."""
_ROUND = re.compile(r"^round (\d+)\b")


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
    path = None
    try:
        chosen = experiment_from(experiment, settings, overrides)
        path = runs_root(chosen) / chosen.name
        _log_choice(chosen.name, experiment, changed(settings, overrides))
        with exclusive(begun(chosen, rounds), chosen.runtime) as driver:
            first, last = driver.set_target(rounds, purpose=flow_run.id)
            label(chosen.name, rounds_text(first, last))
            if last - max(first - 1, 0) != rounds:
                get_run_logger().warning(
                    "this flow run set out for rounds %d to %d, which is what it finishes; its parameters now ask for "
                    "%d",
                    first,
                    last,
                    rounds,
                )
            with visits(driver, first, last) as (numbers, due):
                driver.visit(numbers, partial(run_round, str(driver.run.path)))
        return finished(driver, first, last, due)
    except CrlError as error:
        return stopped(error, path)


@flow(name="resume", persist_result=False, validate_parameters=False)
@deployable
def resume(run_path: RunPath, runtime: RuntimeChanges = NOTHING) -> Any:
    """Run what is missing up to the last round that was asked for; says so where nothing is.

    Returns the run's path and the rounds that ran. Fails as `train` does.

    Args:
        run_path: A run of the worker's machine: the name of its experiment, or the path of its directory.
        runtime: Shards, limits and retention from now on. Empty: as the run last set out with.
    """
    path = None
    try:
        path = run_from(run_path)
        run = RunDirectory.open(path)
        label(run.experiment_name, "resume")
        wanted = runtime_from(last_runtime(run.path), runtime)
        check_run(run, wanted)
        log_precision(run.method)
        with exclusive(run, wanted) as driver:
            first, last = driver.unfinished(purpose=flow_run.id)
            label(
                run.experiment_name, f"resume {rounds_text(first, last)}" if last >= first else "resume, nothing to do"
            )
            with visits(driver, first, last) as (numbers, due):
                driver.visit(numbers, partial(run_round, str(run.path)))
        return finished(driver, first, last, due)
    except CrlError as error:
        return stopped(error, path)


def _round_name() -> str:
    """`round 3 of quickstart`, of the flow run that begins: the training run may be called `quickstart: round 3`."""
    given = flow_run.parameters
    return f"round {given['number']} of {Path(given['run_path']).name}"


@flow(name="round", flow_run_name=_round_name, persist_result=False)
def run_round(run_path: str, number: int) -> State[Any] | None:
    """Every stage of a round, in the order of the recipe. Complete stages are skipped by the record."""
    driver = driver_for(run_path)
    run_stage = stage_task(driver.runtime)
    try:
        with driver.round(number) as stages:
            for stage in stages:
                wait_for_decision(driver, number, stage)
                state: Any = run_stage(run_path, number, stage, return_state=True)
                state.result()
    except CrlError as error:
        publish_failure(run_path, number)
        return failed(error)
    publish_round(run_path, number)
    tell_round(run_path, number)
    watch_the_others()
    return None


@contextmanager
def visits(driver: Driver, first: int, last: int) -> Iterator[tuple[list[int], list[int]]]:
    """Around the visits to rounds first to last: the rounds to visit, and those of them that have something to do.

    What a retried flow run set out with may build on rounds that were taken back since: they run before. A round that
    is complete is visited too when the flow run set out with it: Prefect recognizes the child runs of a retried flow
    run by their order.
    """
    if (missing := driver.next_round()) < first:
        get_run_logger().info("round %d is not complete any more: the rounds from there on run first", missing)
        first = missing
    due = [number for number in range(first, last + 1) if not driver.round_complete(number)]
    _report_disagreements(driver)
    end_earlier_attempts()
    if not due:
        get_run_logger().info(
            "Nothing to do: every round up to %d is complete. Ask for more rounds to go on.", driver.next_round() - 1
        )
        yield [], []
        return
    spread_over_tasks(driver)
    # The run's own heartbeat stands for its rounds: ending a heartbeat takes Prefect up to a second.
    with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), tags(driver.run.experiment_name):
        try:
            yield list(range(first, last + 1)), due
        finally:
            finish_page(driver.run.path)


def finished(driver: Driver, first: int, last: int, due: list[int]) -> State[Any]:
    """The state that a training run ends in: where it stands and where to look, in words; its result as data."""
    path, stop = driver.run.path, driver.stopped
    finish_page(path)  # with the last validations
    ran = [number for number in due if driver.round_complete(number)]
    if stop is not None:
        tell_stop(path, stop.round, stop.setting, stop.in_words)
    told = publish_results(path)
    done = f"{rounds_text(first, ran[-1] if stop is not None else last)} complete" if ran else "nothing to do"
    ends = "" if stop is None else f". {stop.in_words[:1].upper()}{stop.in_words[1:]}; {stop.next_step}"
    message = f"{done}{ends}. {told[:1].upper()}{told[1:]}"
    return Completed(message=message, data={"run": str(path), "rounds": ran})


def stopped(error: CrlError, path: Path | None) -> State[Any]:
    """The state that a training run fails in; its message ends with the head of what is complete."""
    log_error(error)
    return failed(error, "" if path is None else head_text(path))


def begun(experiment: Experiment, rounds: int) -> RunDirectory:
    """The run of an experiment, made where there is none; nothing is made of one that cannot run here (BadInput)."""
    label(experiment.name, f"{rounds} round{'' if rounds == 1 else 's'}")
    root = runs_root(experiment)
    path = root / experiment.name
    if not already_checked.get():
        check_ready(experiment, path, rounds)
        log_precision(experiment.method)
    first = not path.exists()
    _begin(experiment.name, path)
    run = RunDirectory.create_or_open(experiment, root)
    if first:
        _offer()
    return run


def _offer() -> None:
    """List the new run in the forms of the deployments; where that fails, set-up does it."""
    if flow_run.id is not None and PREFECT_API_URL.value():
        with suppress(Exception), get_client(sync_client=True) as client:
            offer_runs(client)


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


def _report_disagreements(driver: Driver) -> None:
    """Write into the log what Prefect remembers of the present flow run's stages that the record knows otherwise."""
    run = present_run()
    if run is not None and run.run_count > 1:
        for line in _disagreements(driver, run.id):
            get_run_logger().warning("%s", line)


def _disagreements(driver: Driver, flow_run_id: UUID) -> Iterator[str]:
    """One line for each stage of the flow run's rounds that Prefect and the record see differently."""
    remembered: dict[tuple[int, str], bool] = {}
    for number, task in _tasks(flow_run_id):
        # Several attempts of one stage: what any of them completed was complete.
        done = task.state is not None and task.state.is_completed()
        remembered[number, task.name] = remembered.get((number, task.name), False) or done
    for (number, stage), done in sorted(remembered.items()):
        if stage not in driver.stages(number):
            continue
        complete = driver.run.is_complete(number, stage)
        if done and not complete:
            yield f"Prefect has {stage} of round {number} as completed, the record has not: it runs again"
        elif complete and not done:
            yield f"Prefect has {stage} of round {number} as not completed, the record has it: it does not run again"


def _tasks(flow_run_id: UUID) -> Iterator[tuple[int, TaskRun]]:
    with get_client(sync_client=True) as client:
        children = flow_runs(client, {"parent_flow_run_id": {"any_": [flow_run_id]}})
        rounds = {child.id: int(found[1]) for child in children if (found := _ROUND.match(child.name))}
        if not rounds:
            return
        for task in task_runs(client, {"flow_run_id": {"any_": list(rounds)}}):
            if task.flow_run_id is not None:
                yield rounds[task.flow_run_id], task
