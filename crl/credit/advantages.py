"""Advantages and sample weights of eq. 5, and advantages of other streams that are normalized on their own. numpy only.

The streams of the paper are {guided, free}. Shapes are those of `crl.credit`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crl.config.mechanisms import StreamObjective
from crl.records import FREE, GUIDED

SMALLEST_STD = 1e-6
"""Below this population standard deviation every advantage is 0: all rewards of the subgroup are equal."""


def standardized(rewards_K: NDArray[np.float64], scale_rewards: Literal["group", "none"]) -> NDArray[np.float64]:
    """Rewards [K] less their mean, divided by their population standard deviation where `scale_rewards` is `group`.

    All zeros where the deviation is below :data:`SMALLEST_STD`, so a singleton has advantage 0. Raises ValueError for
    another word: a recipe that calls this by an older one would train by other advantages without a sign.
    """
    if scale_rewards not in ("group", "none"):
        raise ValueError(f"found scale_rewards {scale_rewards!r}; expected group or none")
    if rewards_K.size == 0 or rewards_K.std() < SMALLEST_STD:
        return np.zeros_like(rewards_K)
    centered_K: NDArray[np.float64] = rewards_K - rewards_K.mean()
    if scale_rewards == "group":
        centered_K /= rewards_K.std()
    return centered_K


def subgroup_advantages(
    rewards_G: Sequence[float],
    streams_G: Sequence[str],
    *,
    streams: Sequence[str] = (GUIDED, FREE),
    scale_rewards: Literal["group", "none"] = "group",
    mode: Literal["subgroup", "pooled"] = "subgroup",
    groups: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages [G] and weights [G] of the members of one group (eq. 5).

    `subgroup` takes the baseline inside each stream: members are compared with those of their own. The weight is
    1/C * 1/K_c for the C `streams` that a group may have (1/2 for guided and free); an empty stream contributes nothing
    and its share is not given to the others. `pooled` takes one baseline, weight 1/G.
    J is the mean over groups: every weight is also divided by `groups`, the number of groups of the batch.
    """
    earned_G = np.asarray(rewards_G, dtype=np.float64)
    stream_G = np.asarray(streams_G, dtype=object)
    if earned_G.shape != stream_G.shape:
        raise ValueError(f"{earned_G.size} rewards and {stream_G.size} streams; expected one of each per member")
    if unknown := set(streams_G) - set(streams):
        raise ValueError(f"found members of stream {', '.join(sorted(unknown))}; expected {', '.join(streams)}")
    advantages_G, weights_G = np.zeros_like(earned_G), np.zeros_like(earned_G)
    everyone_G = np.ones(earned_G.shape, dtype=bool)
    shares = (
        [(stream_G == stream, 1 / len(streams)) for stream in streams] if mode == "subgroup" else [(everyone_G, 1.0)]
    )
    for members_G, share in shares:
        if members_G.any():
            advantages_G[members_G] = standardized(earned_G[members_G], scale_rewards)
            weights_G[members_G] = share / members_G.sum() / groups
    return advantages_G, weights_G


def stream_advantages(
    rewards_N: Sequence[float], groups_N: Sequence[Hashable], config: StreamObjective
) -> NDArray[np.float64]:
    """Advantages [N]: rewards less the mean of their group, divided by its population standard deviation where
    `scale_rewards` is `group`.

    A group is what compares equal in `groups_N`: a task and a stream. All of a group whose rewards are equal have
    advantage 0; the only member of a group has its reward (mean 0, deviation 1), or 0 as `singleton` says.
    Raises ValueError for unequal lengths.
    """
    earned_N = np.asarray(rewards_N, dtype=np.float64)
    if len(groups_N) != earned_N.size:
        raise ValueError(f"{earned_N.size} rewards and {len(groups_N)} groups; expected one of each per rollout")
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(groups_N):
        places[group].append(place)
    advantages_N = np.zeros_like(earned_N)
    for members in places.values():
        if len(members) == 1:
            advantages_N[members] = earned_N[members] if config.singleton == "reward" else 0.0
        else:
            advantages_N[members] = standardized(earned_N[members], config.scale_rewards)
    return advantages_N
