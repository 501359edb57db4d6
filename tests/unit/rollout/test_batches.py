"""A real model's rows have the same tokens whatever the size of the batch, and however far they lag behind."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from crl.config import RoleConfig, SamplingConfig
from crl.policies import load_policy, resolve_model
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from tests.unit.rollout.fakes import Corridor, method, task
from tests.unit.rollout.test_play import seed_of

SAMPLING = SamplingConfig(max_new_tokens=5, constrain="actions")
SETTINGS: list[dict[str, int]] = [
    {}, {"batch": 1}, {"batch": 7}, {"batch": 64}, {"environment_lag": 3}, {"batch": 3, "environment_lag": 2},
]  # fmt: skip


def test_tokens_do_not_depend_on_the_batch() -> None:
    policy = load_policy(RoleConfig(model="tiny"), resolve_model("tiny").path, None, threads=1)

    def played(**rollout: int) -> list[PlayedEpisode]:
        slots = [EpisodeSlot(task(member, 1 + member // 4, group=member // 4)) for member in range(12)]
        return play_wave(
            policy, Corridor(), slots, method=method(**rollout), seed_of=seed_of, sampling=SAMPLING,
            weights_digest="w", stage="collect",
        )  # fmt: skip

    first, *others = [played(**settings) for settings in SETTINGS]
    assert len({episode.episode.turns for episode in first}) > 1, "some end before others"
    for settings, other in zip(SETTINGS[1:], others, strict=True):
        for one, two in zip(first, other, strict=True):
            assert one.generations[0].token_ids == two.generations[0].token_ids, settings
            assert np.allclose(one.generations[0].logprobs, two.generations[0].logprobs, rtol=0, atol=1e-4)
