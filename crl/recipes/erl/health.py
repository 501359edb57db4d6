"""Stage `health`: what a round says about attempts, reflections, memory and updates, from recorded rows alone."""

from __future__ import annotations

from crl.protocols import StopReason
from crl.recipes.erl.attempts import attempt_id, attempt_stage, reflect_stage
from crl.recipes.erl.config import ACTOR, config_of
from crl.recipes.erl.figures import attempt_figures, carried, memory_figures, reflection_figures
from crl.recipes.erl.rows import Reflection
from crl.records import BankEvent, Episode, Generation, Operation, Turn
from crl.rounds.alarms import turn_figures
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.health import (
    age_figures,
    cut_alarm,
    cut_figures,
    group_figures,
    mismatch_alarms_of,
    play_figures,
    update_figures,
    write_health,
)
from crl.rounds.weights import update_name

MOST_MALFORMED = 0.5
"""Above this share of malformed reflections most further attempts go by the old instructions."""


def health(ctx: StageContext) -> None:
    """Write the figures of the round."""
    config = config_of(ctx.method)
    stages = [attempt_stage(revision) for revision in range(config.revisions + 1)]
    attempts = {stage: ctx.rows(Episode, stage) for stage in stages}
    first, everything = attempts[stages[0]], [row for rows in attempts.values() for row in rows]
    by_id = {row.episode_id: row for row in everything}
    pairs = [
        (by_id[before], by_id[after])
        for revision in range(1, config.revisions + 1)
        for episode in first
        if (after := attempt_id(episode.episode_id, revision)) in by_id
        and (before := attempt_id(episode.episode_id, revision - 1)) in by_id
    ]
    turns = [reason for stage in stages for reason in ctx.table(Turn, stage)["stop_reason"].to_pylist()]
    figures = {
        # Success and equal rewards are those of first attempts: what the actor does alone.
        **play_figures(first),
        **turn_figures(everything, turns),
        **group_figures(first, subgroups=True),
        **attempt_figures(first, pairs),
        "actor_tokens_read": float(sum(row.tokens_read for row in everything)),
        "actor_tokens_sampled": float(sum(row.tokens_sampled for row in everything)),
        **carried(ctx.figures("credit"), ("distilled_samples",)),
    }
    alarms: dict[str, str] = {}
    if config.reflect is not None:
        figures |= _reflections(ctx, config.revisions)
        if figures.get("share_malformed", 0.0) > MOST_MALFORMED:
            told = f"more than {MOST_MALFORMED:.0%} of the reflections are malformed"
            alarms["share_malformed"] = f"{told}: their attempts go by the old instructions"
    if config.has_memory:
        figures |= memory_figures(ctx.rows(BankEvent, NEW_BANK))
        figures |= age_figures("bank_age", [ctx.round - each for each in ctx.bank().table["updated_round"].to_pylist()])
        written = ctx.table(Operation, "distill")["embedder_cut"].drop_null()
        figures |= cut_figures(written.to_pylist())
        if config.memory is not None and config.memory.order == "similarity":
            alarms |= cut_alarm(figures, "memory.embedder", "reflect.max_characters")
    for owner in sorted(ctx.recipe.trains):
        figures |= update_figures(owner, ctx.figures(update_name(owner)))
    alarms |= mismatch_alarms_of(ctx, figures)
    write_health(ctx, figures, {ACTOR}, alarms)


def _reflections(ctx: StageContext, revisions: int) -> dict[str, float]:
    stages = [reflect_stage(revision) for revision in range(1, revisions + 1)]
    rows = [row for stage in stages for row in ctx.rows(Reflection, stage)]
    records = [row for stage in stages for row in ctx.rows(Generation, stage)]
    sampled = sum(sum(row.loss_mask) for row in records)
    ended = [row.stop_reason for row in records if row.stop_reason != StopReason.context_limit]
    cut = {"reflections_cut": ended.count(StopReason.length) / len(ended)} if ended else {}
    return {
        **reflection_figures(rows),
        **cut,
        "reflector_tokens_read": float(sum(len(row.token_ids) for row in records) - sampled),
        "reflector_tokens_sampled": float(sampled),
    }
