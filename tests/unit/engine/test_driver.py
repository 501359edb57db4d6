"""The driver and its engines on the fake recipe: what is skipped, what is retried, what survives which death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from crl.config import Runtime
from crl.engine.driver import Track, driver_for, watch
from crl.engine.events import (
    Event,
    LogLine,
    Progress,
    Remark,
    RetryScheduled,
    RoundDone,
    StageDone,
    StageErrored,
    StageSkipped,
    StageStarted,
)
from crl.engine.supervisor import Cancelled
from crl.engine.targets import last_runtime
from crl.errors import (
    BadInput,
    DataCheckFailed,
    DiskFull,
    EngineDied,
    LeaseHeld,
    StageFailed,
    StageTimedOut,
    StaleAttempt,
)
from crl.report.state import last_failure, stopped
from crl.run.directory import RunDirectory
from crl.run.journal import Committed, Journal, committed
from tests.marks import sampled
from tests.processes import PATIENCE_SECONDS, as_in_a_terminal, gone, wait_until
from tests.unit.engine.harness import digests, leftovers, make_driver


def of(kind: type, events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def test_rounds_run_once_and_a_second_call_does_nothing(tmp_path, undisturbed, seen):
    with make_driver(tmp_path) as driver:
        driver.subscribe(seen.append)
        assert driver.run_rounds(1) == [0, 1]
        assert [event.stage for event in of(StageDone, seen)] == ["prepare", "draw", "spread", "learn", "total"]
        assert driver.run_rounds(1) == []
        assert driver.next_round() == 2
        assert driver.run_rounds(2) == [2]
        assert digests(driver.run) == undisturbed
        seen.clear()
        driver.run_round(2)
        assert len(of(StageSkipped, seen)) == 4 and not of(StageStarted, seen)
        assert of(RoundDone, seen)[0].seconds == 0
        assert not leftovers(driver.run)


@pytest.mark.slow
def test_a_run_that_may_not_go_on_begins_no_round_and_a_resume_says_the_same(tmp_path, undisturbed, seen):
    longest = {"stop_at": {"hours": 1e-9}}
    with make_driver(tmp_path, **longest) as driver:
        driver.subscribe(seen.append)
        driver.set_target(2)
        assert driver.run_rounds(2) == [0], "round 0 has taken longer, and is finished"
        assert driver.stopped.setting == "runtime.stop_at.hours"
        events = Journal(driver.run.path).read()
        assert stopped(events)["reason"] == driver.stopped.in_words
        assert [event.text for event in of(Remark, seen)] == [f"{driver.stopped.in_words}; {driver.stopped.next_step}"]
    with make_driver(tmp_path) as driver:
        driver.set_target(2)
        assert stopped(Journal(driver.run.path).read()) is None, "somebody asked for rounds since"
        driver.run_stage(1, "draw")
    with make_driver(tmp_path, **longest) as driver:
        assert driver.run_rounds(2) == [1], "a round that has begun is finished"
        assert driver.stopped.round == 1
    with make_driver(tmp_path) as driver:
        assert driver.run_rounds(2) == [2] and driver.stopped is None
        assert digests(driver.run) == undisturbed


def test_another_seed_gives_other_digests(tmp_path, undisturbed):
    with make_driver(tmp_path, seed=1) as driver:
        driver.run_rounds(1)
        assert not set(digests(driver.run).values()) & set(undisturbed.values())


def test_manifest_lists_what_a_stage_and_its_parts_read(quiet):
    assert set(quiet.manifest(1, "draw").digested.inputs) == {"0000/prepare"}
    assert set(quiet.manifest(1, "spread").digested.inputs) == {"0001/draw"}
    assert set(quiet.manifest(1, "total").digested.inputs) == {"0001/draw", "0001/spread"}
    assert quiet.manifest(1, "total").provenance["attempt"] == 1


@pytest.mark.parametrize("stage", sampled(["draw", "spread/2", "learn"], 3))
def test_a_killed_engine_is_replaced_and_the_digests_are_those_of_an_undisturbed_run(
    tmp_path, undisturbed, seen, stage
):
    with make_driver(tmp_path, {stage: ["kill_once", str(tmp_path / "marker")]}) as driver:
        driver.subscribe(seen.append)
        driver.run_rounds(2)
        assert digests(driver.run) == undisturbed
        assert driver.run.manifest(1, stage.partition("/")[0]).provenance["attempt"] == 2
        assert not leftovers(driver.run)
    (error,) = of(StageErrored, seen)
    assert error.error["type"] == "EngineDied" and error.transient
    assert "SIGKILL" in error.error["found"] and "out of memory" in error.error["next_step"]
    assert len(of(RetryScheduled, seen)) == 1
    assert gone(int((tmp_path / "marker").read_text()))


@pytest.mark.slow
def test_a_transient_failure_is_retried_only_so_often(tmp_path, seen):
    with make_driver(tmp_path, {"draw": ["kill", ""]}, retries=2) as driver:
        driver.subscribe(seen.append)
        with pytest.raises(EngineDied):
            driver.run_rounds(1)
        assert [event.attempt for event in of(RetryScheduled, seen)] == [2, 3]
        assert driver.next_round() == 1
    assert not leftovers(driver.run)


@pytest.mark.parametrize(
    ("mishap", "expected"),
    sampled(
        [
            (["breach", ""], DataCheckFailed),
            (["raise", ""], StageFailed),
            (["bad_input", ""], BadInput),
            (["exit", "3"], StageFailed),
        ],
        2,
    ),
)
def test_a_permanent_failure_is_raised_at_once_and_the_engine_lives_on(tmp_path, seen, mishap, expected):
    with make_driver(tmp_path, {"draw": mishap}) as driver:
        driver.subscribe(seen.append)
        driver.run_round(0)
        before = driver._tracks[0].engines.shard(0).pids
        with pytest.raises(expected) as raised:
            driver.run_round(1)
        assert driver._tracks[0].engines.shard(0).pids == before
        assert not of(RetryScheduled, seen) and not leftovers(driver.run)
    if mishap[0] == "raise":
        assert raised.value.found == "ValueError: the fake broke"
        assert "round 1, stage draw, fake_recipe.py line" in raised.value.where
        assert any("Traceback" in event.text for event in of(LogLine, seen))


def test_whatever_breaks_in_an_attempt_that_was_replaced_is_told_as_that(tmp_path):
    with make_driver(tmp_path, {"draw": ["rob", ""]}, retries=3) as driver:
        with pytest.raises(StaleAttempt, match=r"taken over: token 2"):
            driver.run_rounds(1)
        assert driver.run.complete_stages(1) == []
        assert not [event for event in Journal(driver.run.path).read() if event["event"] == "stage_failed"]


def test_a_heartbeat_that_cannot_be_written_is_told_as_that(tmp_path):
    marker = tmp_path / "marker"
    with make_driver(tmp_path, {"draw": ["sleep", str(marker)]}) as driver:
        driver.run_round(0)
        lose = lambda: (wait_until(marker.exists, "it sleeps"), driver._lease._lose())  # noqa: E731
        threading.Thread(target=lose).start()
        with pytest.raises(StaleAttempt, match="heartbeat could not be written"):
            driver.run_round(1)


@pytest.mark.slow
def test_a_commit_that_its_maker_did_not_live_to_tell_is_told_by_the_next(tmp_path, monkeypatch):
    run = Track.run

    def dies_behind_the_commit(*job):
        run(*job)
        raise EngineDied("gone")

    with monkeypatch.context() as patched:
        patched.setattr(Track, "run", dies_behind_the_commit)
        with make_driver(tmp_path) as driver:
            driver.run_round(0)  # which is retried
        path = driver.run.path
        assert last_failure(Journal(path).read()) is None
        with make_driver(tmp_path, retries=0) as driver, pytest.raises(EngineDied):
            driver.run_stage(1, "draw")
        digest = driver.run.manifest(1, "draw").digest
        assert last_failure(Journal(path).read())
    with make_driver(tmp_path):
        assert last_failure(Journal(path).read()) is None
        assert committed(path)[1, "draw"] == Committed(digest, 2)


@pytest.mark.slow  # an engine starts only to import Great Expectations; each half of it is a fast test
def test_rows_that_break_a_rule_stop_the_stage_before_it_is_committed(tmp_path, monkeypatch):
    monkeypatch.setenv("CRL_FAKE_CHECKS", "1")
    with make_driver(tmp_path, {"draw": ["duplicates", ""]}) as driver:
        with pytest.raises(DataCheckFailed, match="metrics") as raised:
            driver.run_rounds(1)
        assert "round 1, stage draw" in str(raised.value)
        assert driver.next_round() == 1 and driver.run.is_complete(0, "prepare")
    assert not leftovers(driver.run)


@pytest.mark.slow
@pytest.mark.parametrize(("mishap", "name", "restarted"), [("memory", "EngineDied", True), ("disk", "DiskFull", False)])
def test_exhausted_memory_and_a_full_disk_are_transient(tmp_path, undisturbed, seen, mishap, name, restarted):
    with make_driver(tmp_path, {"draw": [f"{mishap}_once", str(tmp_path / "marker")]}) as driver:
        driver.subscribe(seen.append)
        driver.run_round(0)
        before = driver._tracks[0].engines.shard(0).pids
        driver.run_rounds(2)
        assert (driver._tracks[0].engines.shard(0).pids != before) == restarted
        assert [event.error["type"] for event in of(StageErrored, seen)] == [name]
        assert digests(driver.run) == undisturbed
    assert DiskFull.transient


def test_a_stage_past_its_time_limit_is_ended_with_its_engine(tmp_path, monkeypatch):
    marker = tmp_path / "marker"

    def clock() -> float:
        """Once the stage is under way, an hour has passed: the limit is reached then and not before."""
        return time.monotonic() + 3600 * marker.exists()

    monkeypatch.setattr("crl.engine.supervisor.time", SimpleNamespace(monotonic=clock))
    with make_driver(tmp_path, {"draw": ["sleep", str(marker)]}, stage_time_limit_seconds=3000, retries=0) as driver:
        driver.run_round(0)
        with pytest.raises(StageTimedOut):
            driver.run_round(1)
        assert gone(int(marker.read_text()))
        assert not driver.run.is_complete(1, "draw")


@pytest.mark.slow
def test_cancelling_ends_the_engine_and_the_next_call_starts_a_new_one(tmp_path, undisturbed):
    marker = tmp_path / "marker"
    with make_driver(tmp_path, {"draw": ["sleep_once", str(marker)]}) as driver:
        driver.run_round(0)
        engine = driver._tracks[0].engines.shard(0)
        threading.Thread(target=lambda: (wait_until(marker.exists, "it sleeps"), engine.cancel())).start()
        with pytest.raises(Cancelled):
            driver.run_round(1)
        assert gone(int(marker.read_text()))
        driver.run_rounds(2)
        assert digests(driver.run) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["spread", "spread-killed"])
def test_parts_over_three_engines_have_the_digests_of_one(tmp_path, undisturbed, seen, stage):
    mishaps = {"spread/1": ["kill_once", str(tmp_path / "marker")]} if stage == "spread-killed" else {}
    with make_driver(tmp_path, mishaps, shards=3) as driver:
        driver.subscribe(seen.append)
        driver.run_rounds(2)
        assert digests(driver.run) == undisturbed
        assert len({pid for engine in driver._tracks[0].engines.started() for pid in engine.pids}) == 3
        assert not leftovers(driver.run)
    last = [event for event in of(Progress, seen) if event.stage == "spread" and event.round == 2][-1]
    assert (last.done, last.total, last.metrics["made"]) == (40, 40, 40)


@pytest.mark.slow
def test_what_an_engine_wrote_in_a_stage_is_told_before_the_stage_is_done(tmp_path, seen):
    """However slowly the lines are read, as on a busy machine: they belong to the stage, and to its part."""

    def slow(event: Event) -> None:
        if isinstance(event, LogLine):
            time.sleep(0.3)

    watched: list[Event] = []
    unwatch = watch(watched.append)
    with make_driver(tmp_path, {"draw": ["say", ""]}) as driver:
        driver.subscribe(slow)
        driver.subscribe(seen.append)
        driver.run_rounds(1)
    unwatch()
    told = [event for event in seen if isinstance(event, LogLine | StageDone)]
    done = next(index for index, event in enumerate(told) if isinstance(event, StageDone) and event.stage == "draw")
    said = [event for event in told[:done] if isinstance(event, LogLine) and event.stage == "draw"]
    assert [event.text for event in said] == ["a line", "next line", "an error line"]

    drawn = [event for event in of(Progress, watched) if event.stage == "draw"]
    assert (drawn[-1].done, drawn[-1].total) == (5, 5) and drawn[-1].metrics == {"drawn": 5, "rate": 2.5}
    texts = [event.text for event in of(LogLine, watched)]
    assert [text for text in texts if text in ("a line", "next line", "an error line")] == [
        "a line",
        "next line",
        "an error line",
    ], "whoever watches is told as well"


def test_a_broken_subscriber_does_not_stop_a_run(tmp_path):
    with make_driver(tmp_path) as driver:
        driver.subscribe(lambda event: 1 / 0)
        assert driver.run_rounds(0) == [0]


def test_one_driver_at_a_time_owns_a_run_and_tasks_find_it(tmp_path):
    with make_driver(tmp_path) as driver:
        assert driver_for(driver.run.path) is driver
        with pytest.raises(LeaseHeld), make_driver(tmp_path):
            pass
        assert driver_for(driver.run.path) is driver
    with pytest.raises(StageFailed, match="no driver is open"):
        driver_for(driver.run.path)


@pytest.mark.slow
def test_targets_are_remembered_for_whoever_set_them(tmp_path):
    with make_driver(tmp_path) as driver:
        assert driver.unfinished() == (0, -1)
        assert driver.set_target(2, purpose="flow-a") == (0, 2)
        driver.run_rounds(1)
        assert driver.set_target(2, purpose="flow-a") == (0, 2)
        assert driver.unfinished() == (2, 2)
    with make_driver(tmp_path) as driver:
        driver.run_rounds(2)
        assert driver.unfinished() == (3, 2)
        assert driver.set_target(2, purpose="flow-b") == (3, 4)
        assert driver.unfinished(more=3) == (3, 7), "remembered at once, with what was left"
        assert driver.unfinished() == (3, 7)


def test_a_resume_finds_the_settings_the_run_set_out_with(tmp_path):
    driver = make_driver(tmp_path, retries=7, lease_seconds=33)
    assert last_runtime(driver.run.path) == Runtime()
    with driver:
        driver.set_target(1)
    assert last_runtime(driver.run.path) == driver.runtime
    assert driver.runtime.retries == 7


def test_a_recipe_that_cannot_be_loaded_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.unit.engine.fake_recipe.FakeConfig.BUILDER", "no_such_module:recipe_of")
    with pytest.raises(BadInput, match="no_such_module"):
        make_driver(tmp_path)


@pytest.mark.slow
def test_kill_9_of_the_parent_takes_the_engine_along_and_a_resume_gives_equal_digests(tmp_path, undisturbed):
    marker = tmp_path / "marker"
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[3])]!r}
from pathlib import Path
from tests.unit.engine.harness import make_driver
with make_driver(Path({str(tmp_path)!r}), {{"spread/2": ["sleep", {str(marker)!r}]}}) as driver:
    driver.run_rounds(2)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    wait_until(marker.exists, "the stage sleeps")
    worker = int(marker.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: gone(worker), "its engine is gone", 30)
    with make_driver(tmp_path) as driver:
        driver.run_rounds(2)
        assert digests(driver.run) == undisturbed
        assert not leftovers(driver.run)


@pytest.mark.slow
def test_run_directory_opens_without_a_driver(tmp_path, undisturbed):
    """What a reader sees does not depend on any lease."""
    with make_driver(tmp_path) as driver:
        driver.run_rounds(2)
    assert digests(RunDirectory.open(tmp_path / "fake")) == undisturbed


@pytest.mark.slow
def test_an_interruption_ends_the_engine_and_gives_the_lease_back(tmp_path, undisturbed):
    """Ctrl-C and Prefect's cancellation both arrive as an exception in the thread that waits for the stage."""
    marker = tmp_path / "marker"
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[3])]!r}
from pathlib import Path
from tests.unit.engine.harness import make_driver
try:
    with make_driver(Path({str(tmp_path)!r}), {{"draw": ["sleep", {str(marker)!r}]}}) as driver:
        driver.run_rounds(2)
except KeyboardInterrupt:
    sys.exit(130)
"""
    with as_in_a_terminal():
        parent = subprocess.Popen([sys.executable, "-c", script])
    wait_until(marker.exists, "the stage sleeps")
    worker = int(marker.read_text())
    parent.send_signal(signal.SIGINT)
    assert parent.wait(PATIENCE_SECONDS) == 130
    assert gone(worker)
    with make_driver(tmp_path) as driver:
        assert not leftovers(driver.run)
        driver.run_rounds(2)
        assert digests(driver.run) == undisturbed
