"""Stripped contexts: token for token and mask for mask what a free episode that acts the same has as its record."""

from __future__ import annotations

import numpy as np
import pytest

from crl.config import SamplingConfig
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from crl.rollout.stripped import stripped_context
from tests.unit.rollout.fakes import CharacterChat, Corridor, ScriptedPolicy, method, task

SAMPLING = SamplingConfig(max_new_tokens=40)
NOTE = "use {observation} & go right"
Script = list[tuple[str, bool]]
"""What is said, turn by turn, and whether its end was sampled."""


def play(script: Script, *, guided: bool, seed: int = 3, **rollout: object) -> PlayedEpisode:
    policy = ScriptedPolicy(lambda row, turn: script[turn])
    slot = EpisodeSlot(task(0, seed), "e1", "d1", NOTE) if guided else EpisodeSlot(task(1, seed))
    return play_wave(
        policy, Corridor(), [slot], method=method(**rollout), seed_of=lambda name: np.random.SeedSequence(1),
        sampling=SAMPLING, weights_digest="w", stage="collect",
    )[0]  # fmt: skip


def assert_as_free(guided: PlayedEpisode, free: PlayedEpisode, **rollout: object) -> None:
    row = stripped_context(CharacterChat(), guided, method(**rollout))
    assert (row.episode_id, row.generation_id) == (guided.episode.episode_id, guided.generation.generation_id)
    assert row.token_ids == free.generation.token_ids
    assert row.loss_mask == free.generation.loss_mask
    assert row.removed_tokens == len(guided.generation.token_ids) - len(free.generation.token_ids) > 0


@pytest.mark.parametrize("placement", ["user", "system"])
@pytest.mark.parametrize(
    "script",
    [
        [("right", True)] * 3,
        [("right", False), ("hm", True), ("Right!", False), ("go right", True)],
        [("", False), ("left", True)],
        [("hm", True)] * 6,
    ],
    ids=["won", "ends not sampled", "lost", "turn limit"],
)
def test_without_questions(script: Script, placement: str) -> None:
    played = [play(script, guided=guided, placement=placement) for guided in (True, False)]
    assert played[0].episode.guided and NOTE not in played[1].generation.prompt
    assert_as_free(*played, placement=placement)
