"""The extractor network between rows: what it sees of a sample (six numbers, and the embedding of its task and
actions), and the network itself, taken from the round before and given to the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from crl.recipes.importance_replay.config import ExtractorNetworkConfig, config_of
from crl.recipes.importance_replay.rows import ExtractorTensor, ReplayItem
from crl.records import Episode, Turn
from crl.rounds.context import StageContext
from crl.run.seeds import seed_for

if TYPE_CHECKING:
    from crl.recipes.importance_replay.scorer import ExtractorNetwork, ScorerSettings

NETWORK = "network"
"""Name of the read of the network of the round before."""


def network_of(
    ctx: StageContext, features: int, read: str = NETWORK, settings: ScorerSettings | None = None
) -> ExtractorNetwork:
    """The network as the round before left it; before the first round one that scores everything 0.5. `settings`
    where it is to be trained: scoring reads none of them."""
    from crl.recipes.importance_replay.scorer import ExtractorNetwork, Tensor, first_tensors

    config = config_of(ctx.method).extractor
    rows = ctx.rows(ExtractorTensor, read)
    if not rows:
        seed = seed_for(ctx.method.seed, "extractor_network")
        return ExtractorNetwork(first_tensors(features, config.hidden, seed), settings)
    tensors = {}
    for row in rows:
        weights, first, second = (
            np.array(values, dtype=np.float32).reshape(row.shape)
            for values in (row.weights, row.first_moment, row.second_moment)
        )
        tensors[row.name] = Tensor(weights, first, second, row.steps)
    return ExtractorNetwork(tensors, settings)


def rows_of_network(network: ExtractorNetwork) -> list[ExtractorTensor]:
    """A row per tensor."""
    return [
        ExtractorTensor(
            name=name,
            shape=list(tensor.weights.shape),
            weights=tensor.weights.ravel().tolist(),
            first_moment=tensor.first_moment.ravel().tolist(),
            second_moment=tensor.second_moment.ravel().tolist(),
            steps=tensor.steps,
        )
        for name, tensor in network.tensors().items()
    ]


def matrix(features: Sequence[Sequence[float]]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Features [N, F] of samples."""
    return np.array(features, dtype=np.float32)


def settings_of(config: ExtractorNetworkConfig) -> ScorerSettings:
    """How the network is trained."""
    from crl.recipes.importance_replay.scorer import ScorerSettings

    return ScorerSettings(config.learning_rate, config.extractor_coefficient, config.coupling_coefficient)


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
