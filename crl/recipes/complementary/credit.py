"""Stage `credit`: what every experience earned, which outputs are ripe, and the samples of both updates.

Any generation becomes a sample here, with advantage and weight; the updates read nothing else. What a use earns is said
by the rule that `extractor_objective.credit` names (`crl/credit/rules`). Where rounds overlap the actor's samples are
those of the stage `advantages`, which needs nothing but what was collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from crl.bank.duplicates import SimilarPairs
from crl.bank.segments import text_digest
from crl.credit.buffer import HeldText, Output, buffer_metrics, earners, fill_buffer
from crl.credit.rules import Round, Scored, TaskKey, rule_of, task_of
from crl.credit.samples import cispo_samples, grpo_samples, select_batches, trained_episodes
from crl.credit.uses import credit_metrics, credits_of, earned_when_written, entry_scores, free_means, uses_of
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, config_of
from crl.recipes.complementary.mechanisms import Mechanism
from crl.recipes.complementary.mechanisms.actor_critic import verdicts_of
from crl.recipes.complementary.mechanisms.context_distillation import taught_samples
from crl.recipes.complementary.mechanisms.self_distillation import distilled_samples
from crl.records import (
    BankEvent,
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Generation,
    Metric,
    Operation,
    Retrieval,
    Sample,
    Turn,
    UseReward,
    rows_with,
)
from crl.rounds.context import NEW_BANK, StageContext
from crl.rounds.fall_back import falls_back
from crl.rounds.health import output_alarms, output_shares
from crl.rounds.proposal import recorded_resemblances
from crl.rounds.stage import BEFORE, SCORES, RowsOf

COMING_BANK = "coming_bank"
"""Where rounds overlap, the read of the bank that the next round plays with, which is not the new one."""
ADVANTAGES = "advantages"
UNTRAINABLE = "prompt_too_long"
"""Reason code of an output that was never sampled: there is nothing to train."""


def credit(ctx: StageContext, on: Sequence[Mechanism] = ()) -> None:
    """Credit the uses of the round, fill the extractor's buffer, choose its batch, make the samples."""
    config = config_of(ctx.method)
    objective = config.extractor_objective
    trains = config.trains(EXTRACTOR, ctx.round) and not falls_back(ctx)
    episodes, retrievals, critiques = ctx.rows(Episode, "collect"), ctx.rows(Retrieval, "plan"), verdicts_of(ctx)
    distilled, merged = (ctx.rows(Distillation, stage) for stage in ("distill", "merge"))
    credits = credits_of(episodes, retrievals, critiques)
    writers = Writers(ctx, uses_of(episodes, credits, retrievals, critiques))
    scored = _scored(ctx, episodes, retrievals, distilled, credits, writers)
    # A recipe that never trains the extractor fills no buffer. It fills and waits in warm-up rounds, and where the run
    # falls back.
    fills = EXTRACTOR in config.TRAINED
    buffer = _filled(ctx, scored, [*distilled, *merged], episodes, writers, on) if fills else []
    batches: list[list[BufferItem]] = []
    if trains:
        batches, buffer = select_batches(buffer, objective, round=ctx.round)
    samples, taught = ([], []) if ctx.method.overlap else _actor_samples(ctx, episodes)
    generations = ctx.generations_at(
        (item.generation_round, item.generation_stage, item.generation_id) for batch in batches for item in batch
    )
    samples += cispo_samples(batches, generations, objective, round=ctx.round)
    ctx.write(Credit, credits)
    ctx.write(EntryScore, entry_scores(ctx.rows(EntryScore, BEFORE), credits))
    # Where a use earns its outcome and no more, `credits` say it all.
    if config.scores_uses:
        ctx.write(UseReward, scored.uses)
    ctx.write(BufferItem, buffer)
    ctx.write(Sample, samples)
    shares = output_shares([row.verdict for row in (*distilled, *merged)])
    ctx.write(
        Metric,
        credit_metrics(episodes, credits, round=ctx.round)
        + _metrics(ctx, shares, output_alarms(shares))
        + (buffer_metrics(buffer, round=ctx.round, config=objective, trains=trains) if fills else [])
        + _metrics(ctx, scored.metrics)
        + taught,
    )


def scores_now(rows: RowsOf) -> list[EntryScore]:
    """Scores of entries with the games of the round, before it has credited them."""
    return entry_scores(rows(EntryScore, SCORES), credits_of(rows(Episode, "collect"), rows(Retrieval, "plan")))


def advantages(ctx: StageContext) -> None:
    """The actor's samples alone."""
    samples, metrics = _actor_samples(ctx, ctx.rows(Episode, "collect"))
    ctx.write(Sample, samples)
    ctx.write(Metric, metrics)


def _actor_samples(ctx: StageContext, episodes: Sequence[Episode]) -> tuple[list[Sample], list[Metric]]:
    """Samples of the round's episodes, those that are distilled last, and how many these are where it is due."""
    config = config_of(ctx.method)
    if not config.trains(ACTOR, ctx.round):
        return [], []
    generations = {row.generation_id: row for row in ctx.rows(Generation, "collect")}
    turns = ctx.rows(Turn, "collect") if config.actor_objective.turn_credit is not None else []
    objective, sampling = config.actor_objective, ctx.method.rollout.dynamic_sampling
    trained = trained_episodes(episodes, sampling, pooled=objective.advantage == "pooled")
    samples = grpo_samples(trained, generations, objective, round=ctx.round, turns=turns)
    beside = {
        "self_distilled": distilled_samples(ctx, episodes, generations),
        "context_distilled": taught_samples(ctx, episodes, generations),
    }
    due = {name: more for name, more in beside.items() if more is not None}
    metrics = {name: float(len(more)) for name, more in due.items()}
    return [*samples, *(each for more in due.values() for each in more)], _metrics(ctx, metrics)


def _scored(
    ctx: StageContext,
    episodes: Sequence[Episode],
    retrievals: Sequence[Retrieval],
    distilled: Sequence[Distillation],
    credits: Sequence[Credit],
    writers: Writers,
) -> Scored:
    """What the rule says of the round; its own rows are written."""
    config = config_of(ctx.method)
    rule, trial = rule_of(config.extractor_objective.credit), config.trial
    instead = rule.when_written or (trial is not None and trial.reward == "trial")
    scored = rule.score(
        Round(
            config=config.extractor_objective,
            episodes=episodes,
            retrievals=retrievals,
            credits=credits,
            uses=writers.uses,
            distilled=distilled,
            earners=earners(
                ctx.rows(BufferItem, BEFORE),
                unrewarded=writers.unrewarded(by_uses=not instead) if EXTRACTOR in config.TRAINED else frozenset(),
            ),
            own_task=lambda name: writers.own_tasks.get(name),
        ),
        [] if rule.keeps is None else ctx.rows(rule.keeps, BEFORE),
    )
    if rule.keeps is not None:
        ctx.write(rule.keeps, scored.after)
    return scored


def _filled(
    ctx: StageContext,
    scored: Scored,
    written: Sequence[Distillation],
    episodes: Sequence[Episode],
    writers: Writers,
    on: Sequence[Mechanism],
) -> list[BufferItem]:
    """The extractor's buffer with what the round's uses and outputs earned; `written` are the outputs."""
    bank = ctx.bank(NEW_BANK).table
    # A text that left the new bank may still be played where rounds overlap.
    banks = [bank, ctx.bank(COMING_BANK).table] if ctx.method.overlap else [bank]
    previous, repeats = ctx.rows(BufferItem, BEFORE), _repeats(ctx, bank)
    trainable = {row.generation_id: row for row in written if row.reason_code != UNTRAINABLE}
    at_once = earned_when_written(trainable.values(), free_means(episodes), config_of(ctx.method).extractor_objective)
    beside = [each for mechanism in on for each in mechanism.earned(ctx)]
    return fill_buffer(
        previous,
        [
            *(Output(name, origin) for name, origin in writers.origins.items()),
            *(Output(name, (row.round, row.kind), repeats.get(name, ())) for name, row in trainable.items()),
            # What earns something else was written while the round was played.
            *(
                Output(each.generation_id, (ctx.round, "collect"))
                for each in beside
                if each.generation_id not in trainable
            ),
        ],
        [*scored.earned, *at_once, *beside],
        held_texts(banks, previous, repeats),
        round=ctx.round,
    )


def _repeats(ctx: StageContext, bank: pa.Table) -> dict[str, list[HeldText]]:
    """By output of this round: the texts that it repeats, each once, as the bank holds them now."""
    events = ctx.table(BankEvent, NEW_BANK)
    events = rows_with(events, "kind", ["rejected"])  # an evicted entry names one, too
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


def held_texts(
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


def _metrics(ctx: StageContext, metrics: Mapping[str, float], alarms: Mapping[str, str] | None = None) -> list[Metric]:
    found = alarms or {}
    return [
        Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=value, alarm=found.get(name))
        for name, value in metrics.items()
    ]


class Writers:
    """The outputs behind the uses of a round: which stages wrote them, about what; read when somebody asks."""

    def __init__(self, ctx: StageContext, uses: Sequence[UseReward]) -> None:
        self.uses, self._ctx = uses, ctx
        self._used = {use.generation_id for use in uses}

    @cached_property
    def origins(self) -> dict[str, tuple[int, str]]:
        """(round, stage) that wrote each, from the snapshot's entries and the outputs of their rounds."""
        return {
            row.generation_id: (number, stage)
            for number in sorted(set(self._entries["updated_round"].to_pylist()))
            for stage in self._stages(number)
            for row in self._ctx.rows_at(Distillation, number, stage)
            if row.generation_id in self._used
        }

    def unrewarded(self, *, by_uses: bool) -> set[str]:
        """Those whose uses train nobody but outputs that repeat their texts: no output that this recipe could train
        wrote an imported text, or one that another recipe wrote before a fork. Not `by_uses`, also those that were
        scored when they were written; a merged text was not."""
        entries = zip(*(self._entries[name].to_pylist() for name in ("generation_id", "updated_round")), strict=True)
        foreign = {name for name, number in entries if not self._stages(number)}
        return foreign | {name for name, (_, stage) in self.origins.items() if stage == "distill" and not by_uses}

    @cached_property
    def own_tasks(self) -> dict[str, TaskKey]:
        """The task that each was distilled from, and each output that repeated one of their texts."""
        repeating = {
            item.generation_id: (item.generation_round, item.generation_stage)
            for item in self._ctx.rows(BufferItem, BEFORE)
            if not self._used.isdisjoint(item.repeats)
        }
        wanted, own = {**self.origins, **repeating}, {}
        for number in sorted({number for number, stage in wanted.values() if stage == "distill"}):
            played = {row.episode_id: row for row in self._ctx.rows_at(Episode, number, "collect")}
            for row in self._ctx.rows_at(Distillation, number, "distill"):
                if row.generation_id in wanted and row.episode_id is not None:
                    own[row.generation_id] = task_of(played[row.episode_id])
        return own

    @cached_property
    def _entries(self) -> pa.Table:
        """Entries of the round's bank that hold their texts."""
        return rows_with(self._ctx.bank().table, "generation_id", sorted(self._used))

    def _stages(self, round_number: int) -> list[str]:
        """Stages of a round that write texts of the bank and keep the token records of their outputs, which another
        recipe's may not. Round 0 has none: its texts are imported."""
        stages = self._ctx.recipe.stages_of(self._ctx.method, round_number)
        return [stage.name for stage in stages if stage.name in ("distill", "merge") and Generation in stage.writes]
