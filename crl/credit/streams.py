"""Advantages of streams that are normalized on their own: first attempts, reflections, second attempts. numpy only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from crl.config.objectives import ClippedObjective
from crl.credit.advantages import standardized


def stream_advantages(
    rewards_N: Sequence[float], groups_N: Sequence[Hashable], config: ClippedObjective
) -> NDArray[np.float64]:
    """Advantages [N]: rewards less the mean of their group, divided by its population standard deviation (`std`).

    A group is what compares equal in `groups_N`: a task and a stream. All of a group whose rewards are equal have
    advantage 0; the only member of a group has its reward (mean 0, deviation 1), or 0 as `singleton` says.
    Raises ValueError for unequal lengths.
    """
    rewards = np.asarray(rewards_N, dtype=np.float64)
    if len(groups_N) != rewards.size:
        raise ValueError(f"{rewards.size} rewards and {len(groups_N)} groups; expected one of each per sequence")
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(groups_N):
        places[group].append(place)
    advantages = np.zeros_like(rewards)
    for members in places.values():
        if len(members) == 1:
            advantages[members] = rewards[members] if config.singleton == "reward" else 0.0
        else:
            advantages[members] = standardized(rewards[members], config.normalize)
    return advantages
