"""What the extractor network sees of a sample: six numbers, and the embedding of its task and actions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crl.recipes.importance_replay.rows import ReplayItem
from crl.records import Episode, Turn

NUMBERS = ("reward", "advantage", "turns", "trained", "age", "mean_logprob")
"""The numbers, in their order."""


def compressed(value: float) -> float:
    """sign(x) log(1 + |x|): rewards and lengths of any size come to a scale that a small network can work with."""
    return math.copysign(math.log1p(abs(value)), value)


def features_of(item: ReplayItem, embedding: Sequence[float], *, round: int) -> list[float]:
    """Features [6 + D] of a sample in a round: the same sample is another one as it ages."""
    age = round - item.generation_round
    numbers = (item.reward, item.advantage, item.turns, item.trained, age, item.mean_logprob)
    return [*map(compressed, numbers), *embedding]


def text_of(episode: Episode, turns: Sequence[Turn]) -> str:
    """What is embedded: the goal, the first observation, and what was done, in order."""
    ordered = sorted(turns, key=lambda turn: turn.turn)
    actions = " ".join(turn.action or "" for turn in ordered)
    return "\n".join((episode.goal, ordered[0].observation if ordered else "", actions))
