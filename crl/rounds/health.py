"""What the stage `health` of every recipe needs: tokens of records, and how its figures and alarms are written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set

import pyarrow as pa
import pyarrow.compute as pc

from crl.records import Metric
from crl.rounds.causes import mismatch_causes
from crl.rounds.collapse import counters, health_metrics
from crl.rounds.context import StageContext
from crl.rounds.figures import mismatch_alarms
from crl.rounds.forked import method_of_round
from crl.rounds.stage import BEFORE


def tokens_of(written: pa.Table) -> tuple[int, int]:
    """Tokens of token records (`Generation`) that were read, and that were sampled."""
    sampled = pc.sum(pc.list_flatten(written["loss_mask"])).as_py() or 0
    return (pc.sum(pc.list_value_length(written["token_ids"])).as_py() or 0) - sampled, sampled


def mismatch_alarms_of(ctx: StageContext, figures: Mapping[str, float]) -> dict[str, str]:
    """Alarms where sampler and trainer of a role disagree, with what is known here of the causes."""

    def causes(owner: str) -> list[str]:
        from crl.policies.machine import computed

        config = ctx.services.model_path(owner) / "config.json"
        return mismatch_causes(computed(ctx.method.role(owner)), json.loads(config.read_text(encoding="utf-8")))

    return mismatch_alarms(figures, causes)


def write_health(
    ctx: StageContext, figures: Mapping[str, float], trained: Set[str], alarms: Mapping[str, str] | None = None
) -> None:
    """Write the metrics of a round (:func:`health_metrics`); `trained` are the roles that it trains.

    After a fork to another recipe, or to other settings of it, rounds with a sign of collapse are counted anew: the
    signs that were counted may be gone for good, or nothing that this recipe shows.
    """
    previous = ctx.figures(BEFORE)
    if method_of_round(ctx.recipe, ctx.method, ctx.round - 1).recipe != ctx.method.recipe:
        previous = {name: value for name, value in previous.items() if name not in counters()}
    ctx.write(Metric, health_metrics(figures, previous, trained, round=ctx.round, alarms=alarms))
