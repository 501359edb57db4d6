"""Pools of real and of synthetic episodes, and the batches that the actor's steps draw from them: pure functions.

An episode keeps the advantage that it has among its group and the log-probabilities that it was sampled with. One
without an advantage has no gradient and stays out. A batch has the set share of real episodes; where a pool holds too
few, the batch is smaller, and its share the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from crl.credit.buffer import drawn_once
from crl.recipes.dreamgym.config import PoolsConfig
from crl.recipes.dreamgym.rows import EVICTED, HELD, REAL, PooledEpisode
from crl.records import SYNTHETIC


class Parts(NamedTuple):
    """How many episodes of a batch are of each pool."""

    real: int
    synthetic: int


def pools_after(
    before: Iterable[PooledEpisode], new: Sequence[PooledEpisode], config: PoolsConfig
) -> list[PooledEpisode]:
    """The pools of the round before and its new episodes, in order of entry; of more than a pool's capacity the oldest
    are marked as evicted. What was evicted before is gone."""
    items = sorted((*(item for item in before if item.status == HELD), *new), key=lambda item: item.entered_order)
    gone: set[str] = set()
    for pool, most in ((REAL, config.real), (SYNTHETIC, config.synthetic)):
        own = [item.episode_id for item in items if item.pool == pool]
        gone.update(own[: max(0, len(own) - most)])
    return [replace(item, status=EVICTED) if item.episode_id in gone else item for item in items]


def parts_of(batch: int, real_share: float) -> Parts:
    """The parts of a batch of so many episodes: the real one is the nearest whole number."""
    real = math.floor(real_share * batch + 0.5)
    return Parts(real, batch - real)


def largest(held: Parts, batch: int, real_share: float) -> Parts:
    """The parts of the largest batch, of at most `batch` episodes, that the pools can give at that share; none where a
    pool that it needs is empty."""
    for size in range(min(batch, sum(held)), 0, -1):
        parts = parts_of(size, real_share)
        fits = parts.real <= held.real and parts.synthetic <= held.synthetic
        if fits and (parts.real or not real_share) and (parts.synthetic or real_share == 1):
            return parts
    return Parts(0, 0)


def drawn(
    held: Sequence[PooledEpisode], config: PoolsConfig, real_share: float, generator: np.random.Generator
) -> list[list[PooledEpisode]]:
    """A batch for each step: of every pool its part, evenly and without replacement, the real ones first."""
    pools = [[item for item in held if item.pool == pool] for pool in (REAL, SYNTHETIC)]
    parts = largest(Parts(*map(len, pools)), config.batch, real_share)
    return [
        [
            pool[place]
            for pool, part in zip(pools, parts, strict=True)
            for place in sorted(drawn_once(np.ones(len(pool)), part, generator))
        ]
        for _ in range(config.steps if sum(parts) else 0)
    ]
