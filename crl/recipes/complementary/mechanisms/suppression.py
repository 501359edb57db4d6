"""Suppression (`recipe.suppress`): a text that does harm in a task family is not retrieved for it, and stays.

Stage `effects` keeps what each text has done in each family, with the uses of the round. Whatever retrieves passes over
the texts that it says are harmful: the plan, evaluation, and questions. The plan alone passes over those that are
withdrawn, too: the guided episodes are for what the present actor gains from (SKILL0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from crl.bank.segments import load_texts
from crl.config import Method, SuppressConfig
from crl.errors import BadInput
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, MetricsAndAlarms, Sources, TruthShare
from crl.records import Credit, Episode, Metric, Suppression, TextEffect, rows_with
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.stage import BEFORE, Read, Stage

EFFECTS = "effects"
_LEAST_COUNT = 1e-3
"""Weight below which nothing is remembered of a text."""


class Suppress(Mechanism):
    """`recipe.suppress`."""

    key = "recipe.suppress"
    after_rollouts = False
    config: SuppressConfig

    def problems(self, method: Method) -> Iterator[BadInput]:
        if config_of(method).always_guided(method):
            yield BadInput(
                "guided_share leaves no member of a group unguided, so no effect of a text can be measured",
                expected="a share that leaves some free, or no suppress",
                where="method.recipe.suppress",
                next_step="leave it out, or lower recipe.guided_share",
            )

    def stages(self, method: Method, at: Sources) -> Sequence[Stage]:
        reads = (Read("credit"), Read("collect"), Read(EFFECTS, -1, BEFORE))
        return (Stage(name=EFFECTS, run=self.measure, reads=reads, writes=(TextEffect, Metric)),)

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        played, now = Adds(reads=(Read(EFFECTS, -at.lag),)), Adds(reads=(Read(EFFECTS),))
        asks = {"collect": played} if method.rollout.search_and_ask is not None else {}
        return {"plan": Adds(played.reads, writes=(Suppression,)), "evaluate": now, "health": now, **asks}

    def measure(self, ctx: StageContext) -> None:
        """Write what texts have done in each family, with the round's uses."""
        families = {row.episode_id: row.family for row in ctx.rows(Episode, "collect")}
        effects = text_effects(ctx.rows(TextEffect, BEFORE), ctx.rows(Credit, "credit"), families, self.config)
        ctx.write(TextEffect, effects)
        harmful = sum(row.suppressed for row in effects)
        metrics = {"texts_suppressed": float(harmful)}
        if effects:
            metrics["texts_suppressed_share"] = harmful / len(effects)
        if self.config.withdraw is not None:
            metrics["texts_withdrawn"] = float(sum(row.withdrawn and not row.suppressed for row in effects))
        ctx.write_metrics(metrics)

    def metrics(self, ctx: StageContext, truth: TruthShare) -> MetricsAndAlarms:
        """Whether the texts of the bank that are not retrieved are right, each once for every such family."""
        harmful = [row for row in ctx.rows(TextEffect, EFFECTS) if row.suppressed]
        held = rows_with(ctx.bank(NEW_BANK).table, "content_digest", {row.content_digest for row in harmful})
        texts = load_texts(ctx.run_path, held)
        found = [(row.family, texts[row.content_digest]) for row in harmful if row.content_digest in texts]
        return truth("experiences_true_suppressed", found), {}


def masked(ctx: StageContext, *, training: bool) -> dict[str, frozenset[str]]:
    """Texts that are passed over, by family, as the round that the bank is of left them; none where all are found."""
    if config_of(ctx.method).suppress is None:
        return {}
    return texts_by_family(
        row for row in ctx.rows(TextEffect, EFFECTS) if row.suppressed or (training and row.withdrawn)
    )


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
    return [
        replace(effects[key], suppressed=is_harmful(effects[key], config), withdrawn=is_useless(effects[key], config))
        for key in sorted(effects)
    ]


def is_harmful(effect: TextEffect, config: SuppressConfig) -> bool:
    """Whether an effect is surely below the bound: mean + standard_errors · sqrt(variance / count) < below.

    The variance is (spread + 1) / count: one squared outcome is added, or a few equal uses would be sure of themselves.
    """
    if effect.count < config.min_uses:
        return False
    error = math.sqrt((effect.spread + 1.0) / effect.count / effect.count)
    return effect.mean + config.standard_errors * error < config.max_effect


def is_useless(effect: TextEffect, config: SuppressConfig) -> bool:
    """Whether the actor gains no more than the bound by a text, with enough uses that are not faded."""
    return config.withdraw is not None and effect.count >= config.min_uses and effect.mean <= config.withdraw


def texts_by_family(effects: Iterable[TextEffect]) -> dict[str, frozenset[str]]:
    """Digests of their texts, by task family."""
    found: dict[str, set[str]] = {}
    for row in effects:
        found.setdefault(row.family, set()).add(row.content_digest)
    return {family: frozenset(texts) for family, texts in found.items()}
