"""A turn that the environment leaves without an answer to give ends its episode, and no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crl.config import SamplingConfig
from crl.errors import BadInput
from crl.protocols import Start, Step
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from tests.unit.rollout.fakes import END, CharacterChat, Corridor, ScriptedPolicy, method, task


class Answering(CharacterChat):
    def answer(self, text: str) -> list[int]:
        return [*map(ord, text), END]


class Odd(Corridor):
    """Slot 1 has other actions from a turn on."""

    def __init__(self, actions: Any, turn: int) -> None:
        super().__init__()
        self.odd, self.at = actions, turn

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        starts = super().reset_many(seeds)
        return [replace(start, actions=self.odd) if (slot, self.at) == (1, 0) else start
                for slot, start in enumerate(starts)]  # fmt: skip

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = super().step_many(actions)
        return {slot: replace(step, actions=self.odd) if (slot, self.at) == (1, self.turn[1]) else step
                for slot, step in steps.items()}  # fmt: skip


def played(environment: Corridor, *, longest: int = 12, constrain: str = "actions") -> list[PlayedEpisode]:
    policy = ScriptedPolicy(lambda row, turn: ("right", True))
    policy.chat = Answering()
    slots, starts = [], Corridor().reset_many([3, 3])
    for member, start in enumerate(starts):
        planned = replace(task(member, 3), goal=start.goal, first_observation=start.observation)
        slots.append(EpisodeSlot(planned))
    return play_wave(
        policy, environment, slots, method=method(), seed_of=lambda name: np.random.SeedSequence(list(name.encode())),
        sampling=SamplingConfig(max_new_tokens=longest, constrain=constrain), weights_digest="w", stage="collect",
    )  # fmt: skip


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize(
    ("actions", "code", "told"),
    [
        ((), "environment_no_action", "names no possible action"),
        (("right", "a walk to the far end"), "environment_action_too_long", "'a walk to the far end' takes 22 tokens"),
        (["right"], "environment_actions", "the actions are a list"),
        (("right", 7), "environment_actions", "an action is a int: 7"),
    ],
)
def test_it_ends_its_episode_alone(turn: int, actions: Any, code: str, told: str) -> None:
    sound, odd = played(Odd(actions, turn))
    assert (sound.episode.stop_reason, sound.episode.turns) == ("success", 3)
    assert (odd.episode.stop_reason, odd.episode.error, odd.episode.reward) == ("error", code, 0.0)
    assert odd.episode.turns == max(turn, 1) and odd.details is not None and told in odd.details
    assert odd.episode.last_observation is None


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_whoever_is_not_restricted_has_nothing_to_do_either(turn: int) -> None:
    assert [each.episode.error for each in played(Odd((), turn), constrain="none")] == [None, "environment_no_action"]


def test_a_turn_that_is_too_short_for_any_answer_is_refused() -> None:
    with pytest.raises(BadInput, match="raise max_new_tokens"):
        played(Corridor(), longest=1)
