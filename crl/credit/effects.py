"""What a text does in a task family, kept as a running estimate, and which texts are surely harmful there.

The effect of a use is its outcome (±1) less the mean outcome of the unguided rollouts of the same group, -2 to 2.
Count, mean and squared deviations are those of Welford's update, with weights that `decay` shrinks from round to round.
Pure functions over rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from crl.config import SuppressConfig
from crl.records import Credit, Metric, TextEffect

_LEAST_COUNT = 1e-3
"""Weight below which nothing is remembered of a text."""


def text_effects(
    previous: Iterable[TextEffect], credits: Iterable[Credit], families: Mapping[str, str], config: SuppressConfig
) -> list[TextEffect]:
    """The estimates after a round, by family and text: the earlier ones, decayed, and the round's uses in their order.

    `families` has the task family of every credited episode by its id. A use without unguided rollouts says nothing.
    """
    effects = {
        (row.family, row.content_digest): replace(row, count=row.count * config.decay, spread=row.spread * config.decay)
        for row in previous
        if row.count * config.decay >= _LEAST_COUNT
    }
    for credit in credits:
        if credit.guided_minus_free is None:
            continue
        key = families[credit.episode_id], credit.content_digest
        old = effects.get(key) or TextEffect(
            family=key[0], content_digest=key[1], count=0.0, mean=0.0, spread=0.0, suppressed=False
        )
        count, deviation = old.count + 1, credit.guided_minus_free - old.mean
        mean = old.mean + deviation / count
        effects[key] = replace(
            old, count=count, mean=mean, spread=old.spread + deviation * (credit.guided_minus_free - mean)
        )
    return [replace(effects[key], suppressed=is_harmful(effects[key], config)) for key in sorted(effects)]


def is_harmful(effect: TextEffect, config: SuppressConfig) -> bool:
    """Whether an effect is surely below the bound: mean + sureness · sqrt(variance / count) < below.

    The variance is (spread + 1) / count: one squared outcome is added, or a few equal uses would be sure of themselves.
    """
    if effect.count < config.uses:
        return False
    error = math.sqrt((effect.spread + 1.0) / effect.count / effect.count)
    return effect.mean + config.sureness * error < config.below


def suppressed_texts(effects: Iterable[TextEffect]) -> dict[str, frozenset[str]]:
    """By task family, digests of the texts that are not retrieved for it."""
    found: dict[str, set[str]] = {}
    for row in effects:
        if row.suppressed:
            found.setdefault(row.family, set()).add(row.content_digest)
    return {family: frozenset(texts) for family, texts in found.items()}


def effect_metrics(effects: Sequence[TextEffect], *, round: int, stage: str = "credit") -> list[Metric]:
    """How many texts are suppressed in some family, and the share of those with an estimate."""
    masked = sum(row.suppressed for row in effects)
    figures = {"texts_suppressed": float(masked)}
    if effects:
        figures["texts_suppressed_share"] = masked / len(effects)
    return [Metric(round=round, stage=stage, name=name, value=value, alarm=None) for name, value in figures.items()]
