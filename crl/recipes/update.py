"""Stages `update_actor` and `update_extractor`: optimiser steps on the batches that credit chose, in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

from crl.recipes.context import StageContext
from crl.recipes.stage import Read, Stage
from crl.recipes.weights import CHECKPOINT, new_weights, weights_of
from crl.records import Metric, Sample, Weights

SUMMED = frozenset({"samples", "samples_without_gradient", "stepped", "tokens", "nll_tokens"})
"""Figures of an optimiser step that count something."""


def update_stage(role: str) -> Stage:
    """The update stage of a role. It runs on every rank; only rank 0 writes rows."""
    return Stage(
        name=f"update_{role}",
        run=partial(update, role=role),
        reads=(Read("credit"), Read(f"update_{role}", -1)),
        writes=(Weights, Metric),
        role=role,
        update=True,
    )


def update(ctx: StageContext, role: str) -> None:
    """Train on this round's samples of the role.

    Without any (warm-up, buffer not full), or where every advantage is 0 so that nothing would move, the weights stay:
    the row of the round before is carried on and no checkpoint is written.
    """
    samples = [sample for sample in ctx.rows(Sample, "credit") if sample.role == role]
    before = weights_of(ctx, role, -1)
    after = dataclasses.replace(before, round=ctx.round)
    figures = {"samples": 0.0}
    if samples:
        ctx.progress(0, len(samples))
        objective = ctx.method.actor_objective if role == "actor" else ctx.method.extractor_objective
        trainer = ctx.services.trainer(role, before)
        steps: list[dict[str, float]] = []
        for _, batch in groupby(sorted(samples, key=lambda sample: sample.step), key=lambda sample: sample.step):
            steps.append(trainer.update(list(batch), objective))
            ctx.progress(int(sum(step["samples"] for step in steps)), len(samples))
        figures = over_steps(steps)
        if figures["stepped"]:
            trainer.save(ctx.directory / CHECKPOINT)
    if ctx.services.rank > 0:
        return
    if figures.get("stepped"):
        after = new_weights(ctx, before, updates=before.updates + int(figures["stepped"]))
    ctx.write(Weights, [after])
    ctx.write(Metric, [_metric(ctx, name, value) for name, value in sorted(figures.items())])
    if samples:
        ctx.services.trained(role, after)


def over_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of a round's optimiser steps as one: counts are summed, `ratio_max` is the largest, the others are means
    over the steps that have them. `stepped` is the number of steps that were taken."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        combined = max(values) if name == "ratio_max" else sum(values)
        found[name] = combined if name in SUMMED or name == "ratio_max" else combined / len(values)
    return found


def _metric(ctx: StageContext, name: str, value: float) -> Metric:
    alarm = None
    if name == "stepped" and not value:
        alarm = "no update: all rewards of each baseline were equal, so every advantage is 0"
    return Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=value, alarm=alarm)
