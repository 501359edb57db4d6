"""Stages `update_actor` and `update_extractor`: one optimiser step on the samples that credit chose."""

from __future__ import annotations

import dataclasses
from functools import partial

from crl.recipes.context import StageContext
from crl.recipes.stage import Read, Stage
from crl.recipes.weights import CHECKPOINT, new_weights, weights_of
from crl.records import Metric, Sample, Weights


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
        figures = trainer.update(samples, objective)
        if figures["stepped"]:
            trainer.save(ctx.directory / CHECKPOINT)
        ctx.progress(len(samples), len(samples))
    if ctx.services.rank > 0:
        return
    if figures.get("stepped"):
        after = new_weights(ctx, before, updates=before.updates + 1)
    ctx.write(Weights, [after])
    ctx.write(Metric, [_metric(ctx, name, value) for name, value in sorted(figures.items())])
    if samples:
        ctx.services.trained(role, after)


def _metric(ctx: StageContext, name: str, value: float) -> Metric:
    alarm = None
    if name == "stepped" and not value:
        alarm = "no update: all rewards of each baseline were equal, so every advantage is 0"
    return Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=value, alarm=alarm)
