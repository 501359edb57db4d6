"""Parts that no Dask worker takes, and parts whose run is ended: with a scheduler in this process, without Prefect."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from crl.config import Runtime
from crl.engine.jobs import Job, JobKind
from crl.engine.parts import PartOrder, PartOutcome, Spread
from crl.engine.supervisor import Cancelled
from crl.errors import StageTimedOut
from flows import shards
from flows.shards import PartTasks
from tests.processes import PATIENCE_SECONDS, wait_until

distributed = pytest.importorskip("distributed")
futures = pytest.importorskip("prefect_dask.task_runners")

LIMIT = 100.0
go_on = threading.Event()
"""What `held` waits for. Dask sends functions by their names: one with an event of its own could not be sent."""


def done(order: PartOrder) -> PartOutcome:
    return PartOutcome(order.number - 1, False, 0.0, {})


def held(order: PartOrder) -> PartOutcome:
    assert go_on.wait(PATIENCE_SECONDS)
    return done(order)


class Runner:
    """In place of Prefect's task runner: a part is a function that a Dask worker runs in this process."""

    def __init__(self, client: Any, part: Any) -> None:
        self.client, self._part = client, part

    def submit(self, task: object, parameters: dict[str, Any]) -> Any:
        made = self.client.submit(self._part, parameters["order"], pure=False)
        return futures.PrefectDaskFuture(task_run_id=uuid.uuid4(), wrapped_future=made)

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def cluster() -> Any:
    go_on.clear()
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        yield cluster
        go_on.set()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test turns; Dask is asked at every turn of the loop."""
    state = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(shards, "time", SimpleNamespace(monotonic=lambda: state.seconds))
    monkeypatch.setattr(shards, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(shards, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(shards, "_mark_crashed", lambda future: None)
    return state


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    logger = SimpleNamespace(warning=lambda text, *words: lines.append(text % words))
    monkeypatch.setattr(shards, "get_run_logger", lambda: logger)
    return lines


def running(client: Any, part: Any) -> tuple[PartTasks, threading.Thread, list[BaseException | None]]:
    """A spread of two parts under way in a thread, and a list that gets what it raised, or None."""
    tasks = PartTasks(Runtime(shards=2, task_runner="dask", stage_time_limit_seconds=LIMIT))
    tasks._runner = Runner(client, part)  # type: ignore[assignment]
    ended: list[BaseException | None] = []

    def order(number: int) -> PartOrder:
        return PartOrder(Job(JobKind.part, "/run", 3, "spread", 1, part=number), 2, {}, LIMIT)

    def run() -> None:
        try:
            tasks(Spread((0, 1), order, lambda part, metrics: None))
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return tasks, thread, ended


def test_without_a_worker_it_is_said_and_then_ended(cluster: Any, now: SimpleNamespace, said: list[str]) -> None:
    with cluster.get_client() as client:
        _, thread, ended = running(client, done)
        wait_until(lambda: bool(client.futures), "the parts are submitted")
        now.seconds = 61.0
        wait_until(lambda: bool(said), "it is said")
        now.seconds = LIMIT + 1
        thread.join(PATIENCE_SECONDS)
    assert said == ["no part of spread has begun for 61 s; Dask workers that are connected: 0"]
    [error] = ended
    assert isinstance(error, StageTimedOut) and error.transient and error.where == "round 3, stage spread"
    assert "for 101 s; Dask workers that are connected: 0" in error.found and "start workers" in str(error.next_step)


def test_a_part_that_a_worker_has_is_not_waited_for_with_this_clock(
    cluster: Any, now: SimpleNamespace, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may take is in its order: its engine counts that, from when it begins."""
    asked: list[int] = []
    look = shards._processing
    monkeypatch.setattr(shards, "_processing", lambda runner: (asked.append(1), look(runner))[1])
    with cluster.get_client() as client:
        _, thread, ended = running(client, held)
        wait_until(lambda: bool(client.futures), "the parts are submitted")
        now.seconds = LIMIT - 1
        cluster.scale(1)
        wait_until(lambda: any(client.processing().values()), "a worker has a part")
        for late in (0.0, 1.0, 10.0):
            now.seconds += LIMIT * late
            seen = len(asked)  # a part that ended before it is asked for would not be found
            wait_until(lambda seen=seen: len(asked) > seen + 1, "Dask was asked again")
        go_on.set()
        thread.join(PATIENCE_SECONDS)
    assert ended == [None]


@pytest.mark.slow
def test_ended_from_another_thread_the_call_returns_though_its_parts_run(
    cluster: Any, now: SimpleNamespace, said: list[str]
) -> None:
    """As where rounds overlap: the thread that is interrupted is not the one that waits for the parts."""
    cluster.scale(1)
    with cluster.get_client() as client:
        tasks, thread, ended = running(client, held)
        wait_until(lambda: any(client.processing().values()), "a worker has a part")
        tasks.cancel()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive() and [type(error) for error in ended] == [Cancelled]
    with pytest.raises(Cancelled):
        tasks._runner = Runner(None, done)  # type: ignore[assignment]
        tasks(Spread((0,), lambda number: pytest.fail("nothing is begun"), lambda part, metrics: None))
