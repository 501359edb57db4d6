"""Async code behind `step`: slots wait side by side, and what happens to one happens to no other."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from random import Random
from typing import Any

import numpy as np
import pytest

from crl.config import SamplingConfig
from crl.envs.asynchronous import hold, run, run_all
from crl.envs.game import Game, Move
from crl.errors import BadInput
from crl.faults import Fault
from crl.protocols import Actions, FreeText
from crl.rollout.play import PlayedEpisode, play_wave
from tests.unit.rollout.fakes import ScriptedPolicy, method, slots_of

EPISODES = 16
ARRIVED = {"count": 0}


class Meeting(Game):
    """Sixteen players who wait for each other in every turn; some of them do odd things."""

    kind: str = "tests.unit.envs.test_asynchronous:Meeting"
    max_turns: int = 2

    def begin(self, random: Random) -> dict[str, int]:
        return {"turn": 0}

    def goal(self, state: Any) -> str:
        return "Meet."

    def look(self, state: Any) -> str:
        return f"turn {state['turn']}"

    def actions(self, state: Any) -> Actions:
        return FreeText("anything")

    async def act(self, state: Any, action: str) -> Move:
        state["turn"] += 1
        if action == "raise":
            raise ValueError("not me")
        if action == "exit":
            sys.exit(3)
        ARRIVED["count"] += 1
        while ARRIVED["count"] < int(action):
            await asyncio.sleep(0.001)
        return Move(success=state["turn"] == 2, turn_reward=0.25, reward_parts={"met": float(state["turn"])})


def played(texts: list[str], lag: int = 0) -> list[PlayedEpisode]:
    environment = Meeting().make()
    starts = environment.reset_many(range(len(texts)))
    ARRIVED["count"] = 0
    return play_wave(
        ScriptedPolicy(lambda at, turn: (texts[at], True)), environment, slots_of(starts),
        method=method(environment_lag=lag), weights_digest="w", stage="collect",
        seed_of=lambda name: np.random.SeedSequence(list(name.encode())), sampling=SamplingConfig(max_new_tokens=64),
    )  # fmt: skip


@pytest.mark.parametrize("lag", [0, 1])
def test_sixteen_episodes_step_at_once_also_while_others_sample(lag: int) -> None:
    """A step returns once sixteen have begun: one after the other, none would."""
    found = played([str(EPISODES)] * EPISODES, lag)
    assert [each.episode.success for each in found] == [True] * EPISODES
    for each in found:
        assert [turn.turn_reward for turn in each.turns] == [0.25, 0.25] and each.episode.reward == 0.5
        assert (each.episode.reward_names, each.episode.reward_values) == (["met"], [2.0])


def test_what_raises_or_exits_ends_its_own_episode() -> None:
    found = played(["2", "raise", "exit", "2"])
    assert [each.episode.error for each in found] == [None, "environment_ValueError", "environment_SystemExit", None]
    assert "not me" in (found[1].details or "") and found[1].turns[0].turn_reward is None


async def _value(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return threading.get_ident()


def test_one_thread_drives_all_and_faults_come_back_with_their_slots() -> None:
    assert len({run(_value(number)) for number in range(3)}) == 1
    found = dict(run_all({0: _value(1), 1: _value(asyncio.CancelledError()), 2: _value(KeyError("x"))}))
    assert isinstance(found[0], int)
    assert [found[at].code for at in (1, 2)] == ["environment_CancelledError", "environment_KeyError"]
    assert isinstance(found[2], Fault) and dict(run_all({})) == {}
    [(_, ours)] = run_all({0: _value(BadInput("ours"))})
    assert isinstance(ours, Fault) and ours.code == "environment_BadInput"
    assert isinstance(run(_value(0)), int), "the loop goes on"


def test_inside_the_loop_nobody_waits_for_the_loop() -> None:
    async def nested() -> Any:
        return run(_value(1))

    with pytest.raises(RuntimeError, match="await it"):
        run(nested())


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    run(_value(1))
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, str(run(_value(1)) > 0).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == "True"
    os.waitpid(child, 0)


class Client:
    """Wants to be left in the task that entered it, as many clients do."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.task, self.left = error, "", False

    async def __aenter__(self) -> Client:
        if self.error is not None:
            raise self.error
        self.task = repr(asyncio.current_task())
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert repr(asyncio.current_task()) == self.task
        self.left = True

    async def ask(self) -> str:
        return f"left: {self.left}"


def test_a_client_is_held_open_from_call_to_call() -> None:
    client, leave = hold(Client())
    assert run(client.ask()) == run(client.ask()) == "left: False"
    leave()
    assert client.left
    with pytest.raises(ValueError, match="no server"):
        hold(Client(ValueError("no server")))
