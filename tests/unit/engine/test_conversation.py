"""What a supervisor and its ranks say to each other, where two of them speak at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from crl.engine.jobs import Job, JobKind, decode, encode
from crl.engine.supervisor import Engine, ProcessorLimit
from crl.errors import StageTimedOut
from tests.processes import PATIENCE_SECONDS

JOB = Job(JobKind.stage, run_path="", round=2, stage="update_actor", token=1)


class Ranks:
    """The far ends of an engine's connections, and the thread that speaks for its ranks."""

    def __init__(self, count: int) -> None:
        ends = [Pipe() for _ in range(count)]
        self.far = [far for _, far in ends]
        self.said, self.told = threading.Event(), threading.Event()
        output = SimpleNamespace(wait_for=lambda jobs, seconds: None)
        self.engine = Engine(world_size=count)
        self.engine._connections = [near for near, _ in ends]
        self.engine._process = SimpleNamespace(running=True, output=output, kill=lambda: None)  # type: ignore[assignment]

    def run(self, speak: Callable[[], None], time_limit: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Have the job done by ranks that say what `speak` says. The engine does not read while a progress is told."""
        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        found = self.engine.run(JOB, on_message=lambda message: self.wait_said(), time_limit=time_limit)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        return found

    def wait_said(self) -> None:
        self.told.set()
        assert self.said.wait(PATIENCE_SECONDS)

    def heard(self, rank: int) -> str:
        assert self.far[rank].poll(PATIENCE_SECONDS), "nothing was sent"
        return str(decode(self.far[rank].recv_bytes())["type"])

    def says(self, rank: int, kind: str, **more: Any) -> None:
        self.far[rank].send_bytes(encode({"type": kind, **more}))


@pytest.mark.parametrize("order", [((0, "ready"), (1, "result")), ((1, "result"), (0, "ready"))])
def test_a_rank_that_is_done_as_rank_0_asks_to_commit_is_heard_once(order: tuple[tuple[int, str], ...]) -> None:
    """The messages of both ranks are there before the supervisor looks: it waited for a second one for ever."""
    ranks = Ranks(2)

    def speak() -> None:
        assert ranks.heard(0) == "job"
        ranks.says(0, "begun", directory="there")
        ranks.says(0, "progress", metrics={})
        assert ranks.heard(1) == "job"
        for rank, kind in order:
            ranks.says(rank, kind, result={})
        ranks.said.set()
        assert ranks.heard(0) == "commit"
        ranks.says(0, "result", result={"digest": "d"}, jobs=1)

    assert ranks.run(speak) == {"digest": "d"}


def test_no_commit_is_allowed_before_every_rank_is_done() -> None:
    ranks = Ranks(3)

    def speak() -> None:
        assert ranks.heard(0) == "job"
        ranks.says(0, "begun", directory="there")
        assert [ranks.heard(rank) for rank in (1, 2)] == ["job", "job"]
        ranks.says(0, "ready")
        ranks.says(2, "result", result={})
        ranks.said.set()
        for _ in range(2):  # after the second one, all that was said before the first has been read
            ranks.told.clear()
            ranks.says(0, "progress", metrics={})
            assert ranks.told.wait(PATIENCE_SECONDS)
        assert not ranks.far[0].poll(0), "rank 1 is at work"
        ranks.says(1, "result", result={})
        assert ranks.heard(0) == "commit"
        ranks.says(0, "result", result={}, jobs=1)

    assert ranks.run(speak) == {}


def test_a_rank_that_never_comes_to_its_end_is_given_up_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, late = Ranks(2), threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * late.is_set())
    monkeypatch.setattr("crl.engine.supervisor.time", clock)

    def speak() -> None:
        assert ranks.heard(0) == "job"
        ranks.says(0, "begun", directory="there")
        ranks.says(0, "ready")
        assert ranks.heard(1) == "job"
        late.set()

    with pytest.raises(StageTimedOut):
        ranks.run(speak, time_limit=3000)


@pytest.mark.parametrize(
    ("share", "over_at"),
    [(1.0, 600), (0.05, 12_000), (0.0, 600)],
    ids=["alone", "one of many programs", "it hangs"],
)
def test_a_limit_of_processor_time_is_not_shorter_on_a_busy_machine(share: float, over_at: int) -> None:
    """A validation of a few seconds was given up after 600 s in which other programs had the processor."""
    now = 0.0
    limit = ProcessorLimit(600, lambda: 40.0 + share * now, lambda: now)  # it had computed before
    while not limit():
        now += 1
    assert now == pytest.approx(over_at, abs=2)


def test_every_rank_frees_its_models_and_is_waited_for() -> None:
    """Only rank 0 was told: trainers stayed on the GPUs of the others, beside what samples there."""
    ranks, freed = Ranks(3), []

    def speak() -> None:
        for rank in range(3):
            assert ranks.heard(rank) == "job"
            time.sleep(0.1)  # an engine that waited for rank 0 alone would be through
            freed.append(rank)  # before it is said: what is said last ends the wait, and this thread may be slower
            ranks.says(rank, "result", result={}, jobs=1)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    ranks.engine.release()
    assert freed == [0, 1, 2]
