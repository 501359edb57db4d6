"""Stage `credit`: what every experience earned, which outputs are ripe, and the samples of both updates.

Any generation becomes a sample here, with advantage and weight; the updates read nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from crl.learn.buffer import buffer_metrics, fill_buffer, select_batch
from crl.learn.credit import credit_metrics, credits_of, entry_scores, free_means, output_health
from crl.learn.samples import cispo_samples, grpo_samples
from crl.recipes.context import StageContext
from crl.records import (
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Generation,
    Metric,
    Retrieval,
    Sample,
    rows_with,
)

UNTRAINABLE = "prompt_too_long"
"""Reason code of an output that was never sampled: there is nothing to train."""


def credit(ctx: StageContext) -> None:
    """Credit the uses of the round, fill the extractor's buffer, choose its batch, make the samples."""
    episodes = ctx.rows(Episode, "collect")
    distillations = ctx.rows(Distillation, "distill") + ctx.rows(Distillation, "merge")
    credits = credits_of(episodes, ctx.rows(Retrieval, "plan"))
    written = _written(ctx, credits)
    # No output of this run wrote an imported text: its uses are credited to the entry, and train nobody.
    imported = set(written.filter(pc.equal(written["updated_round"], 0))["generation_id"].to_pylist())
    buffer = fill_buffer(
        ctx.rows(BufferItem, "credit", -1),
        [row for row in credits if row.generation_id not in imported],
        [row for row in distillations if row.reason_code != UNTRAINABLE],
        round=ctx.round,
        config=ctx.method.extractor_objective,
        origins=_origins(ctx, written),
        free_means=free_means(episodes),
    )
    trains = ctx.recipe.trains if ctx.round > ctx.method.warm_up_rounds else frozenset()
    selected: list[BufferItem] = []
    if "extractor" in trains:
        selected, buffer = select_batch(buffer, ctx.method.extractor_objective, round=ctx.round)
    samples: list[Sample] = []
    if "actor" in trains:
        generations = {row.generation_id: row for row in ctx.rows(Generation, "collect")}
        samples += grpo_samples(episodes, generations, ctx.method.actor_objective, round=ctx.round)
    samples += cispo_samples(selected, _generations_of(ctx, selected), ctx.method.extractor_objective, round=ctx.round)
    ctx.write(Credit, credits)
    ctx.write(EntryScore, entry_scores(ctx.rows(EntryScore, "credit", -1), credits))
    ctx.write(BufferItem, buffer)
    ctx.write(Sample, samples)
    ctx.write(
        Metric,
        credit_metrics(episodes, credits, round=ctx.round)
        + output_health(distillations, round=ctx.round)
        + buffer_metrics(buffer, round=ctx.round, config=ctx.method.extractor_objective),
    )


def _written(ctx: StageContext, credits: Iterable[Credit]) -> pa.Table:
    """Entries of the round's bank whose texts the credited outputs wrote."""
    wanted = sorted({row.generation_id for row in credits})
    bank = ctx.bank(-1).table
    return rows_with(bank, "generation_id", wanted)


def _origins(ctx: StageContext, written: pa.Table) -> dict[str, tuple[int, str]]:
    """(round, stage) that wrote each credited output, from the snapshot's entries and the outputs of their rounds."""
    wanted = set(written["generation_id"].to_pylist())
    rounds = sorted(set(written["updated_round"].to_pylist()))
    origins: dict[str, tuple[int, str]] = {}
    for round_number in rounds:
        names = {stage.name for stage in ctx.recipe.stages_of(ctx.method, round_number)}
        for stage in ("distill", "merge"):
            if stage in names:
                for row in ctx.rows_at(Distillation, round_number, stage):
                    if row.generation_id in wanted:
                        origins[row.generation_id] = (round_number, stage)
    return origins


def _generations_of(ctx: StageContext, selected: Iterable[BufferItem]) -> dict[str, Generation]:
    """Token records of the selected outputs, from the rounds that wrote them."""
    wanted: dict[tuple[int, str], set[str]] = {}
    for item in selected:
        wanted.setdefault((item.generation_round, item.generation_stage), set()).add(item.generation_id)
    return {
        row.generation_id: row
        for (round_number, stage), ids in sorted(wanted.items())
        for row in ctx.rows_at(Generation, round_number, stage)
        if row.generation_id in ids
    }
