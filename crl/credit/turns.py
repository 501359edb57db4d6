"""Credit of single turns, GiGPO (arXiv 2505.10978): turns of a group that began at one observation are compared. numpy.

A turn's return is the discounted sum of what its episode earned from it on (eq. 6): what the environment pays turn by
turn, and at the last turn the rest of the episode's reward. Turns of a group, and of a stream where baselines are those
of streams, whose observation is the same are an anchor group (eq. 5). A turn's own advantage is that of its return in
the anchor group (eq. 7); the episode's and `weight` times its own are added (eq. 8). A turn that nothing compares with
has none of its own.

There is no baseline of a turn's index: a policy that decides when to stop decides which episodes have a tenth turn, so
such a baseline depends on the action and the gradient is biased.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from crl.config.mechanisms import TurnCredit
from crl.credit.advantages import standardized
from crl.records import Episode, Sample, Turn, turns_by_episode


def returns_of(turns: Sequence[Turn], reward: float, gamma: float) -> list[float]:
    """The discounted return of each turn of an episode, in their order."""
    paid = [turn.turn_reward or 0.0 for turn in turns]
    paid[-1] += reward - sum(paid)
    found: list[float] = []
    for each in reversed(paid):
        found.append(each + gamma * (found[-1] if found else 0.0))
    return found[::-1]


def turn_advantages(
    episodes: Sequence[Episode],
    turns: Sequence[Turn],
    rewards: Mapping[str, float],
    group_of: Callable[[Episode], Hashable],
    config: TurnCredit,
) -> dict[tuple[str, int], float]:
    """The own advantage of each turn, by (episode id, turn index), of episodes that are compared in the groups of
    `group_of`; `rewards` are what these are compared by."""
    played = turns_by_episode(turns)
    anchors: dict[Hashable, list[tuple[tuple[str, int], float]]] = defaultdict(list)
    for episode in episodes:
        own = played.get(episode.episode_id, [])
        earned = returns_of(own, rewards[episode.episode_id], config.gamma) if own else []
        for turn, value in zip(own, earned, strict=True):
            anchors[group_of(episode), turn.observation].append(((episode.episode_id, turn.turn), value))
    found: dict[tuple[str, int], float] = {}
    for members in anchors.values():
        advantages = standardized(np.array([value for _, value in members]), config.scale_rewards)
        found |= {key: float(value) for (key, _), value in zip(members, advantages, strict=True)}
    return found


def token_advantages(
    turns: Sequence[Turn], sample: Sample, own: Mapping[tuple[str, int], float], weight: float
) -> list[float]:
    """The advantage of every trained token of a sequence, that of its episode and `weight` times that of its turn;
    empty where no turn has one of its own. `turns` are those that were sampled in the sequence."""
    if not any(own.get((turn.episode_id, turn.turn)) for turn in turns):
        return []
    by_token = [sample.advantage] * len(sample.token_ids)
    for turn in turns:
        added = weight * own.get((turn.episode_id, turn.turn), 0.0)
        for place in range(turn.first_token, turn.last_token):
            by_token[place] += added
    return [value for value, trained in zip(by_token, sample.loss_mask, strict=True) if trained]
