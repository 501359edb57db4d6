"""Slots of a slow environment: side by side, each with its own limit, and the same rows as one after the other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from crl.config import FamilyConfig
from crl.envs import make_environment
from crl.envs.realms import RealmsConfig
from crl.envs.shrines import ShrinesConfig
from crl.envs.side_by_side import SideBySide
from crl.errors import BadInput
from crl.protocols import KnowsTruth, Leveled, Start, Step, StopReason, Teacher
from tests.processes import PATIENCE_SECONDS


class Waiting:
    """A slot that does what its action says: `meet` waits for the others, `hang` for the end of the test."""

    def __init__(self, meeting: threading.Barrier, end: threading.Event) -> None:
        self.meeting, self.end, self.closed, self.turns = meeting, end, threading.Event(), 0

    def reset_many(self, seeds):
        (self.seed,) = seeds
        return [Start("go", f"seed {self.seed}", ("go",))]

    def step_many(self, actions):
        assert list(actions) == [0]
        if actions[0] == "meet":
            self.meeting.wait(PATIENCE_SECONDS)
        if actions[0] == "hang":
            assert self.end.wait(PATIENCE_SECONDS)
        if actions[0] == "break":
            raise KeyError("broken")
        if actions[0] == "refuse":
            raise BadInput("not here")
        self.turns += 1
        return {0: Step(f"seed {self.seed} turn {self.turns}", ("go",), True, "", False, False, 0.25)}

    def oracle(self, slot):
        return f"oracle of {self.seed}"

    def close(self):
        self.closed.set()


@pytest.fixture
def wave():
    made, end = [], threading.Event()

    def make(slots, *, workers, limit=None):
        meeting = threading.Barrier(slots)

        def instance():
            made.append(Waiting(meeting, end))
            return made[-1]

        environment = SideBySide(instance, workers=workers, step_time_limit_seconds=limit)
        starts = environment.reset_many(range(slots))
        assert [start.observation for start in starts] == [f"seed {slot}" for slot in range(slots)]
        return environment, made

    make.end = end
    yield make
    end.set()


def test_slots_step_at_one_time(wave):
    """Each of the three waits for the other two: one after the other, none would return."""
    environment, _ = wave(3, workers=3)
    steps = environment.step_many(dict.fromkeys((2, 0, 1), "meet"))
    assert list(steps) == [2, 0, 1]
    assert [steps[slot].observation for slot in range(3)] == [f"seed {slot} turn 1" for slot in range(3)]


@pytest.mark.parametrize("apart", [False, True], ids=["one call", "a thread each"])
def test_no_more_of_them_than_there_are_workers(wave, apart):
    environment, made = wave(4, workers=2)
    busy, most, lock = [0], [0], threading.Lock()

    def counted(actions, step):
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        try:
            time.sleep(0.002)
            return step(actions)
        finally:
            with lock:
                busy[0] -= 1

    for each in made:
        each.step_many = lambda actions, step=each.step_many: counted(actions, step)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            if apart:
                assert len(list(threads.map(lambda slot: environment.step_many({slot: "go"}), range(4)))) == 4
            else:
                assert len(environment.step_many(dict.fromkeys(range(4), "go"))) == 4
    assert environment.steps_apart and 1 <= most[0] <= 2


def test_a_thread_that_cannot_be_started_takes_no_place(wave, monkeypatch):
    environment, _ = wave(1, workers=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no new thread")))
        with pytest.raises(RuntimeError, match="no new thread"):
            environment.step_many({0: "go"})
    assert environment.step_many({0: "go"})[0].observation == "seed 0 turn 1"


def test_a_step_past_its_limit_ends_its_episode_and_no_other(wave):
    environment, made = wave(3, workers=2, limit=0.3)
    steps = environment.step_many({0: "hang", 1: "go", 2: "go"})
    assert steps[0].done and not steps[0].success and steps[0].stop_reason is StopReason.error
    assert steps[0].error == "environment_time_limit" and steps[0].reward == 0.0
    assert [steps[slot].observation for slot in (1, 2)] == ["seed 1 turn 1", "seed 2 turn 1"]
    assert environment.oracle(0) is None and environment.oracle(1) == "oracle of 1"
    hanging = made[0]
    assert not hanging.closed.is_set(), "its thread still works with it"
    assert environment.step_many({1: "go"})[1].observation == "seed 1 turn 2"
    assert environment.reset_many([7, 8, 9])[0].observation == "seed 7", "a new instance took its place"
    assert environment.step_many({0: "go"})[0].observation == "seed 7 turn 1"
    wave.end.set()
    assert hanging.closed.wait(PATIENCE_SECONDS), "closed by its thread when the step returned"
    environment.close()
    assert all(each.closed.is_set() for each in made)


def test_a_slot_that_breaks_ends_alone_whatever_it_raises(wave):
    environment, _ = wave(2, workers=2)
    steps = environment.step_many({0: "break", 1: "go"})
    assert steps[0].error == "environment_KeyError" and steps[0].done and steps[1].error is None
    refused = environment.step_many({1: "refuse"})[1]
    assert refused.error == "environment_BadInput" and "not here" in refused.details


def test_rows_are_those_of_the_environment_itself():
    alone = make_environment(FamilyConfig(name="a", environment=RealmsConfig()))
    beside = make_environment(FamilyConfig(name="a", environment=RealmsConfig(), workers=3))
    assert isinstance(beside, SideBySide)
    seeds = [3, 1, 4, 1, 5]
    assert beside.reset_many(seeds) == alone.reset_many(seeds)
    live = set(range(len(seeds)))
    while live:
        actions = {slot: beside.oracle(slot) for slot in live}
        assert actions == {slot: alone.oracle(slot) for slot in live}
        steps = beside.step_many(actions)
        assert steps == alone.step_many(actions)
        live -= {slot for slot, step in steps.items() if step.done}
    assert beside.content(3) == alone.content(3)


def test_it_knows_what_its_instances_know():
    beside = SideBySide(ShrinesConfig().make, workers=2)
    beside.reset_many([1, 2])
    assert isinstance(beside, KnowsTruth) and isinstance(beside, Teacher) and isinstance(beside, Leveled)
    assert not isinstance(SideBySide(RealmsConfig().make, workers=2), Teacher)
