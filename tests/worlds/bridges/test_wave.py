"""What all bridges share: turns, illegal actions, games that raise, random streams, packages that are missing."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from crl.config.environments import ENVIRONMENTS
from crl.errors import BadInput
from crl.protocols import FreeText, Leveled, StopReason
from crl.worlds.bridges.packages import package
from crl.worlds.bridges.wave import Episode, GlobalStreams, LeveledWave, Outcome, Untouched, Wave, seed_of


class Counting(Episode):
    """Counts to three; `break` raises, `draw` shows a number of the global generators."""

    goal = "Count to three."

    def __init__(self, seed: int, actions=("one", "break", "draw", "lose", "time"), closed=None) -> None:
        self.seed, self.count, self.shown, self.offered = seed, 0, "nothing", actions
        self.closed = closed if closed is not None else []

    @property
    def content(self) -> str:
        return f"level {self.seed}"

    def observation(self) -> str:
        return self.shown

    def actions(self):
        return self.offered

    def act(self, action: str) -> Outcome:
        if action == "break":
            raise KeyError("broken")
        if action == "draw":
            self.shown = f"{random.random()} {np.random.random()}"
        if action in ("lose", "time"):
            return Outcome(over=True, reward=-1.0, out_of_turns=action == "time", feedback="Oh.")
        if action == "hm":
            return Outcome(legal=False, reward=0.25)
        self.count += action == "one"
        return Outcome(over=self.count == 3, success=self.count == 3, reward=self.count / 4)

    def oracle(self) -> str:
        return "one"

    def close(self) -> None:
        self.closed.append(self.seed)


def wave(*, turns=5, **options) -> Wave:
    wave = LeveledWave(lambda slot, seed: Counting(seed), max_turns=turns, **options)
    wave.reset_many([10, 11])
    return wave


def test_success_failure_and_the_limits_of_turns():
    played = wave()
    assert isinstance(played, Leveled) and played.content(1) == "level 11"
    steps = [played.step_many({0: played.oracle(0)})[0] for _ in range(3)]
    assert [step.reward for step in steps] == [0.25, 0.5, 0.75] and steps[-1].success
    assert steps[-1].stop_reason is StopReason.success and steps[-1].observation == "nothing\nThe goal is reached."
    assert steps[-1].actions == () and played.oracle(0) is None
    with pytest.raises(RuntimeError, match="done"):
        played.step_many({0: "one"})
    lost = played.step_many({1: "lose"})[1]
    assert (lost.success, lost.reward, lost.stop_reason, lost.feedback) == (False, -1.0, StopReason.failure, "Oh.")
    assert wave().step_many({0: "time"})[0].stop_reason is StopReason.turn_limit
    assert wave(turns=1).step_many({0: "one"})[0].stop_reason is StopReason.turn_limit


@pytest.mark.parametrize("action", [None, "", "ONE", "two", "one ", "\ud800"])
def test_an_illegal_action_spends_a_turn_and_is_not_seen_by_the_game(action):
    played = wave(turns=3)
    played.step_many({0: "one"})
    step = played.step_many({0: action})[0]
    assert not step.legal and step.reward == 0.25 and not step.done
    assert step.feedback == "That names no possible action. Possible: one, break, draw, lose, time."
    assert played.step_many({0: action})[0].stop_reason is StopReason.turn_limit


def test_free_text_is_the_games_to_read():
    played = Wave(lambda slot, seed: Counting(seed, FreeText("a number")), max_turns=9)
    played.reset_many([0])
    assert played.step_many({0: "one"})[0].legal
    assert played.step_many({0: "hm"})[0].feedback == "That is no possible action. Possible: a number."
    assert not played.step_many({0: None})[0].legal


def test_a_game_that_raises_costs_its_own_episode():
    played = wave()
    steps = played.step_many({0: "break", 1: "one"})
    assert (steps[0].done, steps[0].reward, steps[0].error) == (True, 0.0, "environment_KeyError")
    assert steps[0].stop_reason is StopReason.error and steps[1].error is None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no"), BadInput("not here")])
def test_whatever_a_game_raises_costs_its_own_episode_and_one_that_cannot_be_closed_none(error, capfd):
    def give_up(*given):
        raise error

    played = wave()
    played._slots[0].episode.act = played._slots[0].episode.close = give_up
    steps = played.step_many({0: "one", 1: "one"})
    assert (steps[0].error, steps[1].error) == (f"environment_{type(error).__name__}", None)
    assert "in give_up" in steps[0].details
    assert [start.error for start in played.reset_many([10, 11])] == [None, None]
    assert "a game could not be closed" in capfd.readouterr().err


def test_games_are_closed_with_the_next_wave_and_at_the_end():
    closed: list[int] = []
    freed: list[int] = []
    played = Wave(lambda slot, seed: Counting(seed, closed=closed), max_turns=5, free=lambda: freed.append(1))
    played.reset_many([1, 2])
    played.reset_many([3])
    assert closed == [1, 2] and not freed
    played.close()
    assert closed == [1, 2, 3] and freed == [1]


def test_global_generators_follow_the_seed_and_are_given_back():
    random.seed(5)
    np.random.seed(5)
    before = Untouched()
    together, alone = wave(global_streams=True), wave(global_streams=True)
    drawn = [together.step_many({0: "draw", 1: "draw"}) for _ in range(3)]
    later = [alone.step_many({1: "draw"})[1].observation for _ in range(3)]
    assert [step[1].observation for step in drawn] == later
    assert drawn[0][0].observation != drawn[0][1].observation and drawn[0][0].observation != drawn[1][0].observation
    assert before
    random.random()
    assert not before


def test_one_game_at_a_time_has_the_generators():
    first, second, order = GlobalStreams(1), GlobalStreams(1), []
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        with first.installed():
            inside.set()
            assert go.wait(30)
            order.append(random.random())

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(30)
    go.set()
    with second.installed():
        order.append(random.random())
    thread.join(30)
    assert order[0] == order[1], "each drew the first number of its own state"


def test_seeds_for_packages_are_fixed():
    assert [seed_of(0), seed_of(0, 1), seed_of(10**15)] == [seed_of(0), seed_of(0, 1), seed_of(10**15)]
    assert len({seed_of(seed, attempt) for seed in range(100) for attempt in range(10)}) == 1000
    assert all(0 <= seed_of(seed) < 2**31 for seed in (0, 1, 10**15))


def test_a_package_that_is_missing_is_named_with_its_extra():
    with pytest.raises(BadInput) as refused:
        package("no_such_package_of_ours.part", extra="textarena")
    assert "no_such_package_of_ours cannot be imported" in refused.value.found
    assert refused.value.next_step == "pip install -c constraints.txt -e '.[textarena]'"


@pytest.mark.parametrize(
    ("extra", "module", "more"),
    [
        ("gymnasium", "gymnasium", {"id": "FrozenLake-v1"}),
        ("minigrid", "minigrid", {}),
        ("textarena", "textarena", {}),
        ("reasoning_gym", "reasoning_gym.factory", {"dataset": "chain_sum"}),
        ("textworld", "textworld", {"games": "games/*.z8"}),
    ],
)
def test_every_bridge_refuses_without_its_package(extra, module, more, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    config = ENVIRONMENTS.validate({"kind": extra, **more})
    with pytest.raises(BadInput, match="cannot be imported") as refused:
        config.make()
    assert f".[{extra}]" in str(refused.value)
