"""Stage `credit`: what every experience earned, which outputs are ripe, and the samples of both updates.

Any generation becomes a sample here, with advantage and weight; the updates read nothing else. Where rounds overlap the
actor's samples are those of the stage `advantages`, which needs nothing but what was collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from crl.bank.resemblance import SimilarPairs
from crl.bank.segments import text_digest
from crl.credit.answers import AnswerReward, answer_rewards
from crl.credit.buffer import SCORED, HeldText, buffer_metrics, fill_buffer, select_batches
from crl.credit.credit import credit_metrics, credits_of, entry_scores, free_means, output_health
from crl.credit.other_credit import Tasks, by_other_tasks
from crl.credit.rewards import reward_metrics, use_rewards
from crl.credit.samples import cispo_samples, grpo_samples
from crl.credit.self_distillation import distilled_episodes, nll_samples
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, config_of
from crl.recipes.complementary.credit_switches import scored_at_once, tasks_of, utilities
from crl.recipes.complementary.mechanisms.actor_critic import verdicts_of
from crl.records import (
    BankEvent,
    BufferItem,
    CandidateUtility,
    Credit,
    Distillation,
    EntryScore,
    EntryUsefulness,
    Episode,
    Generation,
    Metric,
    Operation,
    Question,
    Retrieval,
    Sample,
    StrippedContext,
    UseReward,
    rows_with,
)
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.proposal import recorded_resemblances
from crl.rounds.stage import BEFORE

COMING_BANK = "coming_bank"
"""Where rounds overlap, the read of the bank that the next round plays with, which is not the new one."""
ADVANTAGES = "advantages"
UNTRAINABLE = "prompt_too_long"
"""Reason code of an output that was never sampled: there is nothing to train."""


def credit(ctx: StageContext) -> None:
    """Credit the uses of the round, fill the extractor's buffer, choose its batch, make the samples."""
    episodes = ctx.rows(Episode, "collect")
    distillations = ctx.rows(Distillation, "distill") + ctx.rows(Distillation, "merge")
    retrievals, judgments = ctx.rows(Retrieval, "plan"), verdicts_of(ctx)
    credits = credits_of(episodes, retrievals, judgments)
    config = config_of(ctx.method)
    objective = config.extractor_objective
    before = ctx.rows(EntryUsefulness, BEFORE)
    uses, usefulness = use_rewards(episodes, credits, retrievals, judgments, before, objective)
    tasks = tasks_of(ctx, uses, _origins(ctx, _written(ctx, uses))) if objective.credit == "other_tasks" else None
    # A recipe that never trains the extractor fills no buffer; in warm-up rounds it fills and waits.
    buffer = _filled(ctx, uses, distillations, episodes, tasks) if EXTRACTOR in config.TRAINED else []
    batches: list[list[BufferItem]] = []
    if config.trains(EXTRACTOR, ctx.round):
        batches, buffer = select_batches(buffer, objective, round=ctx.round)
    samples, distilled = ([], []) if ctx.method.overlap else _actor_samples(ctx, episodes)
    generations_of = _generations_of(ctx, [item for batch in batches for item in batch])
    samples += cispo_samples(batches, generations_of, objective, round=ctx.round)
    ctx.write(Credit, credits)
    ctx.write(EntryScore, entry_scores(ctx.rows(EntryScore, BEFORE), credits))
    # Where a use earns its outcome and no more, `credits` say it all.
    if config.scores_uses:
        ctx.write(UseReward, uses if tasks is None else by_other_tasks(uses, tasks))
    if objective.credit == "running_usefulness":
        ctx.write(EntryUsefulness, usefulness)
    if objective.credit == "trend":
        ctx.write(CandidateUtility, utilities(ctx))
    ctx.write(BufferItem, buffer)
    ctx.write(Sample, samples)
    filled: list[Metric] = []
    if EXTRACTOR in config.TRAINED:
        filled = buffer_metrics(buffer, round=ctx.round, config=objective, trains=config.trains(EXTRACTOR, ctx.round))
    ctx.write(
        Metric,
        credit_metrics(episodes, credits, round=ctx.round)
        + output_health(distillations, round=ctx.round)
        + filled
        + reward_metrics(uses, objective, round=ctx.round)
        + distilled,
    )


def advantages(ctx: StageContext) -> None:
    """The actor's samples alone."""
    samples, metrics = _actor_samples(ctx, ctx.rows(Episode, "collect"))
    ctx.write(Sample, samples)
    ctx.write(Metric, metrics)


def _actor_samples(ctx: StageContext, episodes: Sequence[Episode]) -> tuple[list[Sample], list[Metric]]:
    """Samples of the round's episodes, those of self-distillation last, and how many these are where it is due."""
    config = config_of(ctx.method)
    if not config.trains(ACTOR, ctx.round):
        return [], []
    generations = {row.generation_id: row for row in ctx.rows(Generation, "collect")}
    samples = grpo_samples(episodes, generations, config.actor_objective, round=ctx.round)
    stripped = _self_distilled(ctx, episodes, generations)
    if stripped is None:
        return samples, []
    return [*samples, *stripped], [_metric(ctx, "self_distilled", len(stripped))]


def _filled(
    ctx: StageContext,
    uses: Sequence[UseReward],
    distillations: Sequence[Distillation],
    episodes: Sequence[Episode],
    tasks: Tasks | None,
) -> list[BufferItem]:
    """The extractor's buffer with this round's uses and outputs."""
    written = _written(ctx, uses)
    origins, scored = _origins(ctx, written), scored_at_once(ctx)
    # No output that this recipe could train wrote an imported text, or one that another recipe wrote before a fork: its
    # uses are credited to the entry, and train nobody.
    rounds = zip(written["generation_id"].to_pylist(), written["updated_round"].to_pylist(), strict=True)
    foreign = {name for name, number in rounds if not _writers(ctx, number)}
    # What is scored at once and for all earns nothing by uses. A merged text was never tried, and has no episode.
    paid = {name for name, (_, stage) in origins.items() if stage == "distill" and scored.kind == SCORED}
    bank = ctx.bank(NEW_BANK).table
    # A text that left the new bank may still be played where rounds overlap.
    banks = [bank, ctx.bank(COMING_BANK).table] if ctx.method.overlap else [bank]
    previous, repeats = ctx.rows(BufferItem, BEFORE), _repeats(ctx, bank)
    return fill_buffer(
        previous,
        uses,
        [row for row in distillations if row.reason_code != UNTRAINABLE],
        round=ctx.round,
        config=config_of(ctx.method).extractor_objective,
        origins=origins,
        free_means=free_means(episodes),
        unpaid=foreign | paid,
        scored=scored.rewards,
        scored_kind=scored.kind,
        repeats=repeats,
        held=_held(banks, previous, repeats),
        answers=_answers(ctx, episodes),
        tasks=tasks,
    )


def _answers(ctx: StageContext, episodes: Sequence[Episode]) -> list[AnswerReward]:
    asking = ctx.method.rollout.search_and_ask
    if asking is None or not asking.train_answers:
        return []
    return answer_rewards(ctx.rows(Question, "collect"), episodes, config_of(ctx.method).extractor_objective)


def _repeats(ctx: StageContext, bank: pa.Table) -> dict[str, list[HeldText]]:
    """By output of this round: the texts that it repeats, each once, as the bank holds them now."""
    events = ctx.table(BankEvent, NEW_BANK)
    repeated = events.filter(pc.is_valid(events["repeats"])).select(["operation_id", "repeats"]).to_pylist()
    holders = rows_with(bank, "entry_id", [row["repeats"] for row in repeated]).to_pylist()
    holder_of = {row["entry_id"]: row for row in holders}
    operations = {row.operation_id: row for stage in ("distill", "merge") for row in ctx.rows(Operation, stage)}
    alike = SimilarPairs(recorded_resemblances(ctx.method, ctx.rows))
    found: dict[str, dict[HeldText, None]] = {}
    for row in repeated:
        operation, holder = operations[row["operation_id"]], holder_of.get(row["repeats"])
        if holder is None or holder["generation_id"] == operation.generation_id:
            continue
        # The holder may have been rewritten later in the round: then it may say something else by now.
        digest = text_digest(operation.text or "")
        if holder["content_digest"] == digest or holder["content_digest"] in alike.of(digest):
            text = HeldText(holder["entry_id"], holder["generation_id"])
            found.setdefault(operation.generation_id, {})[text] = None
    return {generation_id: list(texts) for generation_id, texts in found.items()}


def _held(
    banks: Iterable[pa.Table], previous: Iterable[BufferItem], repeats: Mapping[str, Iterable[HeldText]]
) -> set[HeldText]:
    """Those texts of the banks that any output of the buffer wrote or repeats."""
    writers = {name for item in previous for name in (item.generation_id, *item.repeats)}
    writers |= {text.generation_id for texts in repeats.values() for text in texts}
    held = [rows_with(bank, "generation_id", writers) for bank in banks]
    return {
        HeldText(*place)
        for table in held
        for place in zip(table["entry_id"].to_pylist(), table["generation_id"].to_pylist(), strict=True)
    }


def _self_distilled(
    ctx: StageContext, episodes: Sequence[Episode], generations: Mapping[str, Generation]
) -> list[Sample] | None:
    """Samples of self-distillation; None in rounds where it is not due."""
    config = config_of(ctx.method).self_distillation
    if config is None or not config.due(ctx.round):
        return None
    contexts = {row.episode_id: row for row in ctx.rows(StrippedContext, "collect")}
    return nll_samples(distilled_episodes(episodes, config), contexts, generations, config, round=ctx.round)


def _metric(ctx: StageContext, name: str, value: float) -> Metric:
    return Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=float(value), alarm=None)


def _written(ctx: StageContext, uses: Iterable[UseReward]) -> pa.Table:
    """Entries of the round's bank whose texts the outputs that earned something wrote."""
    wanted = sorted({row.generation_id for row in uses})
    bank = ctx.bank().table
    return rows_with(bank, "generation_id", wanted)


def _origins(ctx: StageContext, written: pa.Table) -> dict[str, tuple[int, str]]:
    """(round, stage) that wrote each credited output, from the snapshot's entries and the outputs of their rounds."""
    wanted = set(written["generation_id"].to_pylist())
    rounds = sorted(set(written["updated_round"].to_pylist()))
    origins: dict[str, tuple[int, str]] = {}
    for round_number in rounds:
        for stage in _writers(ctx, round_number):
            for row in ctx.rows_at(Distillation, round_number, stage):
                if row.generation_id in wanted:
                    origins[row.generation_id] = (round_number, stage)
    return origins


def _writers(ctx: StageContext, round_number: int) -> list[str]:
    """Stages of a round that write texts of the bank and keep the token records of their outputs, which another
    recipe's may not. Round 0 has none: its texts are imported."""
    stages = ctx.recipe.stages_of(ctx.method, round_number)
    return [stage.name for stage in stages if stage.name in ("distill", "merge") and Generation in stage.writes]


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
