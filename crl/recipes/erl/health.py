"""Stage `health`: what a round says about attempts, reflections, memory and updates, from recorded rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from crl.credit.uses import usable
from crl.protocols import StopReason
from crl.recipes.erl.attempts import attempt_id, attempt_stage, reflect_stage
from crl.recipes.erl.config import ACTOR, config_of
from crl.recipes.erl.rows import Reflection
from crl.records import BankEvent, Episode, Generation, Operation, Turn
from crl.rounds.alarms import Metrics, turn_metrics
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.health import (
    ExperienceTruth,
    age_metrics,
    cut_alarm,
    cut_metrics,
    group_metrics,
    mismatch_alarms_of,
    one_text_share,
    play_metrics,
    token_metrics,
    update_metrics,
    write_health,
)
from crl.rounds.weights import update_name

MOST_MALFORMED = 0.5
"""Above this share of malformed reflections most further attempts go by the old instructions."""


def health(ctx: StageContext) -> None:
    """Write the metrics of the round."""
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
    metrics = {
        # Success and equal rewards are those of first attempts: what the actor does alone.
        **play_metrics(first),
        **turn_metrics(everything, turns),
        **group_metrics(first, subgroups=True),
        **attempt_metrics(first, pairs),
        **token_metrics(ACTOR, everything),
        **carried(ctx.metrics("credit"), ("distilled_samples",)),
    }
    alarms: dict[str, str] = {}
    if config.reflect is not None:
        metrics |= _reflections(ctx, config.revisions)
        if metrics.get("share_malformed", 0.0) > MOST_MALFORMED:
            told = f"more than {MOST_MALFORMED:.0%} of the reflections are malformed"
            alarms["share_malformed"] = f"{told}: their attempts go by the old instructions"
    if config.has_memory:
        metrics |= memory_metrics(ctx.rows(BankEvent, NEW_BANK))
        metrics |= age_metrics("bank_age", [ctx.round - each for each in ctx.bank().table["updated_round"].to_pylist()])
        written = ctx.table(Operation, "distill")["embedder_cut"].drop_null()
        metrics |= cut_metrics(written.to_pylist())
        if config.memory is not None and config.memory.order == "similarity":
            alarms |= cut_alarm(metrics, "memory.embedder", "reflect.max_characters")
    for owner in sorted(ctx.recipe.trains):
        metrics |= update_metrics(owner, ctx.metrics(update_name(owner)))
    alarms |= mismatch_alarms_of(ctx, metrics)
    write_health(ctx, metrics, {ACTOR}, alarms)


def _reflections(ctx: StageContext, revisions: int) -> dict[str, float]:
    stages = [reflect_stage(revision) for revision in range(1, revisions + 1)]
    rows = [row for stage in stages for row in ctx.rows(Reflection, stage)]
    records = [row for stage in stages for row in ctx.rows(Generation, stage)]
    sampled = sum(sum(row.loss_mask) for row in records)
    ended = [row.stop_reason for row in records if row.stop_reason != StopReason.context_limit]
    cut = {"reflections_cut": ended.count(StopReason.length) / len(ended)} if ended else {}
    return {
        **reflection_metrics(rows),
        **cut,
        "reflector_tokens_read": float(sum(len(row.token_ids) for row in records) - sampled),
        "reflector_tokens_sampled": float(sampled),
    }


Pairs = Sequence[tuple[Episode, Episode]]
"""Attempts with the attempt before each."""


def attempt_metrics(first: Sequence[Episode], pairs: Pairs) -> Metrics:
    """First attempts against those after them; what there is none of is left out.

    - `success_first`: share of the usable first attempts that succeeded;
    - `gate_rate`: share of them that were tried again;
    - `success_second`: of the further attempts;
    - `retry_gain`: mean of r2 - r1 over pairs of attempts;
    - `success_best`: tasks' rollouts that succeeded at the first or any further attempt.
    """
    played = [episode for episode in first if usable(episode)]
    again = [(before, after) for before, after in pairs if usable(before) and usable(after)]
    metrics: Metrics = {}
    if played:
        of_first = {episode.episode_id for episode in played}
        won = {episode.episode_id for episode in played if episode.success}
        tried = {before.episode_id for before, _ in pairs if before.episode_id in of_first}
        metrics["success_first"] = len(won) / len(played)
        metrics["gate_rate"] = len(tried) / len(played)
        later = {(after.family, after.group, after.member) for _, after in again if after.success}
        places = {episode.episode_id: (episode.family, episode.group, episode.member) for episode in played}
        metrics["success_best"] = sum(
            episode.episode_id in won or places[episode.episode_id] in later for episode in played
        ) / len(played)
    if again:
        metrics["success_second"] = sum(after.success for _, after in again) / len(again)
        metrics["retry_gain"] = sum(after.reward - before.reward for before, after in again) / len(again)
    return metrics


def reflection_metrics(rows: Sequence[Reflection]) -> Metrics:
    """How many reflections were written, how many are malformed, distinct, one text, and read a memory."""
    metrics: Metrics = {
        "reflections": float(len(rows)),
        "memory_reads": float(sum(bool(row.entry_ids) for row in rows)),
        "memory_entries_read": float(sum(len(row.entry_ids) for row in rows)),
    }
    experiences = [ExperienceTruth(row.family, row.text) for row in rows if row.text is not None]
    if rows:
        metrics["share_malformed"] = 1 - len(experiences) / len(rows)
        metrics["reflection_trajectories_cut"] = sum(row.turns_shown < row.turns for row in rows) / len(rows)
    if experiences:
        metrics["experiences_distinct"] = len(set(experiences)) / len(experiences)
    return metrics | one_text_share(experiences)


def memory_metrics(events: Iterable[BankEvent]) -> Metrics:
    """What became of the memory: entries that came in, that repeated one, that went."""
    kinds = Counter(event.kind for event in events)
    return {
        "memory_writes": float(kinds["add"]),
        "memory_refused": float(kinds["rejected"]),
        "memory_evicted": float(kinds["evict"]),
    }


def carried(metrics: Mapping[str, float], names: Iterable[str]) -> Metrics:
    """Metrics of another stage, as they are."""
    return {name: metrics[name] for name in names if name in metrics}
