"""The replay buffer: entry, eviction of the oldest, scores, and drawing in proportion to them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crl.recipes.importance_replay.rows import EVICTED, HELD, ReplayItem

ORDERS_A_ROUND = 1_000_000
"""`entered_order` is round * this + place among the round's samples: unique over a run without carrying a counter."""


class Batch(NamedTuple):
    """What an optimizer step trains, of M held samples."""

    places: list[int]
    """Places of the samples that were drawn, ascending."""
    draws: list[int]
    """How often each was drawn."""


def entered(before: Iterable[ReplayItem], new: Sequence[ReplayItem], capacity: int) -> list[ReplayItem]:
    """The buffer of the round before and its new samples, in order of entry; of more than `capacity` the oldest are
    marked as evicted. What was evicted before is gone."""
    items = [item for item in before if item.status == HELD] + list(new)
    items.sort(key=lambda item: item.entered_order)
    surplus = max(0, len(items) - capacity)
    return [replace(item, status=EVICTED) for item in items[:surplus]] + items[surplus:]


def probabilities(scores_M: NDArray[np.float64]) -> NDArray[np.float64]:
    """p_i = s_i / sum of s: drawing in proportion to the scores. Evenly where all scores are 0."""
    total = scores_M.sum()
    even_M: NDArray[np.float64] = np.full_like(scores_M, 1 / max(1, scores_M.size))
    return scores_M / total if total > 0 else even_M


def drawn(probabilities_M: NDArray[np.float64], batch: int, steps: int, generator: np.random.Generator) -> list[Batch]:
    """`steps` batches of `batch` independent draws each, with replacement; none of an empty buffer."""
    found = []
    for _ in range(steps if probabilities_M.size and batch else 0):
        counts_M = generator.multinomial(batch, probabilities_M)
        places = np.flatnonzero(counts_M)
        found.append(Batch([int(place) for place in places], [int(counts_M[place]) for place in places]))
    return found


def refresh_due(round_number: int, every: int) -> bool:
    """Whether scores are refreshed in a round: in every `every`-th."""
    return round_number % every == 0


def to_refresh(items: int, most: int | None, generator: np.random.Generator) -> list[int]:
    """Places of the samples that are scored anew: all, or `most` of them drawn evenly without replacement."""
    if most is None or items <= most:
        return list(range(items))
    return sorted(int(place) for place in generator.choice(items, size=most, replace=False))


def rescored(
    items: Sequence[ReplayItem], places: Sequence[int], scores: Sequence[float], *, round: int
) -> list[ReplayItem]:
    """The items with new scores at these places."""
    new: Mapping[int, float] = dict(zip(places, scores, strict=True))
    return [
        replace(item, score=new[place], scored_round=round) if place in new else item
        for place, item in enumerate(items)
    ]


def noted(items: Sequence[ReplayItem], batches: Iterable[Batch], *, round: int) -> list[ReplayItem]:
    """The items with how often they have been drawn."""
    counts: dict[int, int] = {}
    for batch in batches:
        for place, draws in zip(*batch, strict=True):
            counts[place] = counts.get(place, 0) + draws
    return [
        replace(item, draws=item.draws + counts[place], last_drawn_round=round) if place in counts else item
        for place, item in enumerate(items)
    ]
