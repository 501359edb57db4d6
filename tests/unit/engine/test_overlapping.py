"""Two rounds at a time: who waits for whom, what a failure stops, and the same digests from two engines as from one."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.engine.events import Event, StageDone, StageStarted
from crl.engine.overlapping import OverlappingRounds
from crl.engine.supervisor import Cancelled
from crl.errors import EngineDied, StageFailed
from crl.run.journal import Journal
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.unit.engine.harness import digests, leftovers, make_driver

ROUNDS = 3


class Gates:
    """Rounds of two stages each, `1/first` and `1/second`, that begin when the test has opened them."""

    def __init__(self) -> None:
        self.overlapping = OverlappingRounds(lambda: None)
        self.begun: list[str] = []
        self.waiting: set[int] = set()
        self._gates: dict[str, threading.Event] = {}

    def gate(self, name: str) -> threading.Event:
        return self._gates.setdefault(name, threading.Event())

    def run_round(self, number: int) -> None:
        self._stage(f"{number}/first")
        self.waiting.add(number)
        self.overlapping.enter_second_track(number)
        self._stage(f"{number}/second")

    def _stage(self, name: str) -> None:
        self.begun.append(name)
        assert self.gate(name).wait(PATIENCE_SECONDS)

    def start(self, *, broken: Callable[[int], None] | None = None) -> threading.Thread:
        def run() -> None:
            try:
                self.overlapping.run([1, 2, 3], broken or self.run_round)
            except BaseException as error:
                self.error = error

        self.error: BaseException | None = None
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def wait_begun(self, *names: str) -> None:
        wait_until(lambda: set(self.begun) == set(names), f"{names} had begun, found {self.begun}")


def test_a_round_begins_beside_the_second_track_of_the_one_before_and_never_before_that() -> None:
    rounds = Gates()
    thread = rounds.start()
    rounds.wait_begun("1/first")
    rounds.gate("1/first").set()
    rounds.wait_begun("1/first", "1/second", "2/first")
    rounds.gate("2/first").set()  # its second track waits for round 1, and so does round 3
    wait_until(lambda: 2 in rounds.waiting, "round 2 asks for its second track")
    thread.join(0.3)
    assert rounds.begun == ["1/first", "1/second", "2/first"]
    rounds.gate("1/second").set()
    rounds.wait_begun("1/first", "1/second", "2/first", "2/second", "3/first")
    rounds.gate("2/second").set()
    rounds.gate("3/first").set()
    rounds.gate("3/second").set()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive() and rounds.error is None
    assert rounds.begun[-1] == "3/second"


def test_after_a_failure_the_round_beside_ends_with_its_stage_and_no_other_begins() -> None:
    rounds = Gates()

    def broken(number: int) -> None:
        rounds.run_round(number)
        if number == 1:
            raise EngineDied("killed")

    thread = rounds.start(broken=broken)
    rounds.gate("1/first").set()
    rounds.wait_begun("1/first", "1/second", "2/first")
    rounds.gate("1/second").set()
    wait_until(lambda: rounds.overlapping._failure is not None, "round 1 had failed")
    with pytest.raises(StageFailed, match=r"round 2 was stopped because round 1, which runs beside it, failed"):
        rounds.overlapping.check(2)
    rounds.overlapping.check(1)
    rounds.gate("2/first").set()
    thread.join(PATIENCE_SECONDS)
    assert isinstance(rounds.error, EngineDied), "what the first one raised"
    assert rounds.begun == ["1/first", "1/second", "2/first"]


class Elsewhere:
    """A part runner whose parts end only when they are ended; the run is interrupted meanwhile."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def __call__(self, spread: object) -> None:
        _thread.interrupt_main()
        assert self._ended.wait(PATIENCE_SECONDS), "nobody ended the parts"
        raise Cancelled("ended")

    def cancel(self) -> None:
        self._ended.set()


def test_an_interruption_also_ends_the_parts_that_run_elsewhere(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # A shell starts what it runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with make_driver(tmp_path, overlap=True, shards=2) as driver:
        driver.spread_with(Elsewhere())
        with pytest.raises(KeyboardInterrupt):
            driver.run_rounds(1)
        assert not driver.run.is_complete(1, "spread")


@pytest.mark.slow
def test_two_engines_make_what_one_makes_in_turn(tmp_path: Path, seen: list[Event]) -> None:
    """The second track of round 1 is held until round 2 has learned; then round 2 waits for nobody."""
    with make_driver(tmp_path / "turns", overlap=True, overlap_engines=1) as driver:
        assert driver.run_rounds(ROUNDS) == [0, 1, 2, 3]
        expected = digests(driver.run)
    marker = tmp_path / "held"
    with make_driver(tmp_path / "beside", {"total": ["hold_once", str(marker)]}, overlap=True) as driver:
        driver.subscribe(seen.append)

        def release() -> None:
            wait_until(lambda: driver.run.is_complete(2, "learn"), "round 2 had learned")
            assert not driver.run.is_complete(1, "total") and not driver.run.is_complete(2, "total")
            Path(f"{marker}-go").touch()

        releasing = threading.Thread(target=release)
        releasing.start()
        assert driver.run_rounds(ROUNDS) == [0, 1, 2, 3]
        releasing.join()
        assert digests(driver.run) == expected
        assert not leftovers(driver.run)
        names = {event.stage for event in seen if isinstance(event, StageStarted) and event.round == 2}
        assert names == {"draw", "spread", "learn", "total"}
        order = [(event.round, event.stage) for event in seen if isinstance(event, StageDone)]
        assert order.index((2, "learn")) < order.index((1, "total")) < order.index((3, "draw"))
        begun = [line for line in Journal(driver.run.path).read() if line["event"] == "stage_started"]
        assert len(begun) == len(order), "every stage once"


@pytest.mark.slow
def test_a_failure_in_either_track_is_raised_and_both_go_on_later(tmp_path: Path) -> None:
    with make_driver(tmp_path, overlap=True, overlap_engines=1) as driver:
        driver.run_rounds(0)
    for stage in ("learn", "total"):
        with make_driver(tmp_path, {stage: ["raise", ""]}, overlap=True) as driver:
            with pytest.raises(StageFailed, match="the fake broke"):
                driver.run_rounds(ROUNDS)
            assert driver.next_round() == 1
    with make_driver(tmp_path, overlap=True) as driver:
        driver.run_rounds(ROUNDS)
        found = digests(driver.run)
    with make_driver(tmp_path / "undisturbed", overlap=True, overlap_engines=1) as driver:
        driver.run_rounds(ROUNDS)
        assert digests(driver.run) == found
