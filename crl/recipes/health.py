"""How the stage `health` of every recipe ends: its figures and alarms are written, with what counts a collapse."""

from __future__ import annotations

from collections.abc import Mapping, Set

from crl.learn.collapse import counters, health_metrics
from crl.recipes.context import StageContext
from crl.recipes.forked import method_of_round
from crl.recipes.stage import BEFORE
from crl.records import Metric


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
