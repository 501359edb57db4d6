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
from crl.rounds.alarms import Figures, turn_figures
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.health import (
    Note,
    age_figures,
    cut_alarm,
    cut_figures,
    group_figures,
    mismatch_alarms_of,
    one_text_share,
    play_figures,
    token_figures,
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
        **token_figures(ACTOR, everything),
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


Pairs = Sequence[tuple[Episode, Episode]]
"""Attempts with the attempt before each."""


def attempt_figures(first: Sequence[Episode], pairs: Pairs) -> Figures:
    """First attempts against those after them; what there is none of is left out.

    - `success_first`: share of the usable first attempts that succeeded;
    - `gate_rate`: share of them that were tried again;
    - `success_second`: of the further attempts;
    - `retry_gain`: mean of r2 - r1 over pairs of attempts;
    - `success_best`: tasks' rollouts that succeeded at the first or any further attempt.
    """
    played = [episode for episode in first if usable(episode)]
    again = [(before, after) for before, after in pairs if usable(before) and usable(after)]
    figures: Figures = {}
    if played:
        of_first = {episode.episode_id for episode in played}
        won = {episode.episode_id for episode in played if episode.success}
        tried = {before.episode_id for before, _ in pairs if before.episode_id in of_first}
        figures["success_first"] = len(won) / len(played)
        figures["gate_rate"] = len(tried) / len(played)
        later = {(after.family, after.group, after.member) for _, after in again if after.success}
        places = {episode.episode_id: (episode.family, episode.group, episode.member) for episode in played}
        figures["success_best"] = sum(
            episode.episode_id in won or places[episode.episode_id] in later for episode in played
        ) / len(played)
    if again:
        figures["success_second"] = sum(after.success for _, after in again) / len(again)
        figures["retry_gain"] = sum(after.reward - before.reward for before, after in again) / len(again)
    return figures


def reflection_figures(rows: Sequence[Reflection]) -> Figures:
    """How many reflections were written, how many are malformed, distinct, one text, and read a memory."""
    figures: Figures = {
        "reflections": float(len(rows)),
        "memory_reads": float(sum(bool(row.entry_ids) for row in rows)),
        "memory_entries_read": float(sum(len(row.entry_ids) for row in rows)),
    }
    notes = [Note(row.family, row.text) for row in rows if row.text is not None]
    if rows:
        figures["share_malformed"] = 1 - len(notes) / len(rows)
        figures["reflection_trajectories_cut"] = sum(row.turns_shown < row.turns for row in rows) / len(rows)
    if notes:
        figures["notes_distinct"] = len(set(notes)) / len(notes)
    return figures | one_text_share(notes)


def memory_figures(events: Iterable[BankEvent]) -> Figures:
    """What became of the memory: entries that came in, that repeated one, that went."""
    kinds = Counter(event.kind for event in events)
    return {
        "memory_writes": float(kinds["add"]),
        "memory_refused": float(kinds["rejected"]),
        "memory_evicted": float(kinds["evict"]),
    }


def carried(metrics: Mapping[str, float], names: Iterable[str]) -> Figures:
    """Figures of another stage, as they are."""
    return {name: metrics[name] for name in names if name in metrics}
