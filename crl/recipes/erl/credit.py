"""Stage `credit`: the samples of every stream, what is internalized, and what each memory earned.

First attempts, reflections and further attempts are trained with GRPO, each normalized among its own (task, stream,
revision); a reflection earns the reward of the attempt that it guided. A guided attempt that earned something is also
learned by next-token loss in the context of the first prompt.

The loss is the mean over the sequences that train a set of weights, the internalized ones included; over the tokens of
a sequence it is a sum or a mean (`objective.aggregation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from crl.config import Method
from crl.credit.samples import Sequenced, record_of, sample_of, sequence_samples
from crl.credit.uses import entry_scores, outcome, usable
from crl.recipes.erl.attempts import attempt_stage, reflect_stage
from crl.recipes.erl.config import ACTOR, REFLECTOR, ErlConfig, config_of
from crl.recipes.erl.prompts import OK
from crl.recipes.erl.rows import FIRST, REFLECTION, SECOND, Reflection
from crl.records import (
    Credit,
    EntryScore,
    Episode,
    Generation,
    Retrieval,
    Sample,
    StrippedContext,
)
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE

SUFFIX = "-internalized"
"""End of the id of a sample that learns an attempt in the context of the first prompt."""


@dataclass(frozen=True, slots=True)
class Internalized:
    """A further attempt in the context of the first prompt."""

    generation: Generation
    reward: float
    token_ids: list[int]
    loss_mask: list[int]
    choices: list[list[int]]


def credit(ctx: StageContext) -> None:
    """Samples of every role, credits of the memories that were read, metrics."""
    config, sequences, learned = config_of(ctx.method), [*_sequences(ctx)], [*_internalized(ctx)]
    ctx.write(Sample, samples_of(sequences, learned, ctx.method, round=ctx.round))
    if config.has_memory:
        credits = _credits(ctx)
        ctx.write(Credit, credits)
        ctx.write(EntryScore, entry_scores(ctx.rows(EntryScore, BEFORE), credits))
    errored = sum(not usable(row) for stage in _attempt_stages(config) for row in ctx.rows(Episode, stage))
    broke = f"{errored} episodes broke and train nothing" if errored else None
    metrics = {"sequences": len(sequences), "distilled_samples": len(learned), "episodes_errored": errored}
    ctx.write_metrics(metrics, {"episodes_errored": broke})


def samples_of(
    sequences: Sequence[Sequenced], learned: Sequence[Internalized], method: Method, *, round: int
) -> list[Sample]:
    """One GRPO sample per sequence, then one next-token sample per internalized attempt, in their order.

    With N sequences of a set of weights, internalized ones included, a GRPO sample has the weight 1/N. The update
    divides the next-token loss by the T tokens of all its samples, so a sample of reward r has the weight
    c max(r, 0) T/N (c: `internalize.weight`); with `token_mean` also 1 over its own tokens.
    """
    config = config_of(method)
    counts = Counter(method.owner(each.role) for each in sequences)
    counts[method.owner(ACTOR)] += len(learned)
    found = sequence_samples(sequences, config.objective, lambda role: 1 / counts[method.owner(role)], round=round)
    tokens = sum(sum(each.loss_mask) for each in learned)
    factor = config.internalize.weight if config.internalize is not None else 0.0
    for each in learned:
        trained = sum(each.loss_mask)  # none where every turn left no choice
        own = trained if config.objective.aggregation == "token_mean" else 1
        weight = factor * max(each.reward, 0.0) * tokens / counts[method.owner(ACTOR)] / own if trained else 0.0
        played = sample_of(
            each.generation, round=round, role=ACTOR, objective="nll", reward=each.reward, advantage=1.0, weight=weight
        )
        found.append(
            replace(
                played,
                sample_id=f"{played.sample_id}{SUFFIX}",
                weight=weight,
                token_ids=each.token_ids,
                loss_mask=each.loss_mask,
                # Nothing was sampled in this context.
                logprobs=[0.0] * len(each.token_ids),
                choices=each.choices,
            )
        )
    return found


def _attempt_stages(config: ErlConfig) -> list[str]:
    return [attempt_stage(revision) for revision in range(config.revisions + 1)]


def _sequences(ctx: StageContext) -> Iterator[Sequenced]:
    """Every sequence that a policy objective trains: first attempts, then of each revision reflections and attempts."""
    config = config_of(ctx.method)
    yield from _of_attempts(ctx, 0, FIRST)
    for revision in range(1, config.revisions + 1):
        if config.reflect is not None:
            retries = {row.episode_id: row for row in ctx.rows(Episode, attempt_stage(revision))}
            written = _generations(ctx, reflect_stage(revision))
            for row in ctx.rows(Reflection, reflect_stage(revision)):
                retry, record = retries[row.retry_id], record_of(written, row.generation_id)
                # What was never sampled trains nobody, and an attempt that broke says nothing.
                if record.token_ids and usable(retry):
                    group = (retry.family, retry.group, REFLECTION, revision)
                    yield Sequenced(REFLECTOR, record, reflection_reward(row, retry, config), group)
        yield from _of_attempts(ctx, revision, SECOND)


def reflection_reward(row: Reflection, retry: Episode, config: ErlConfig) -> float:
    """r2 of the attempt that it guided; of a malformed one what the experiment says."""
    malformed = config.reflect.malformed_reward if config.reflect is not None else "outcome"
    return retry.reward if row.reason_code == OK or malformed == "outcome" else malformed


def _of_attempts(ctx: StageContext, revision: int, stream: str) -> Iterator[Sequenced]:
    played = _generations(ctx, attempt_stage(revision))
    for episode in ctx.rows(Episode, attempt_stage(revision)):
        if usable(episode):
            group = (episode.family, episode.group, stream, revision)
            yield Sequenced(ACTOR, record_of(played, episode.generation_id), episode.reward, group)


def _internalized(ctx: StageContext) -> Iterator[Internalized]:
    config = config_of(ctx.method)
    if config.internalize is None:
        return
    for revision in range(1, config.revisions + 1):
        stage = attempt_stage(revision)
        played = _generations(ctx, stage)
        contexts = {row.episode_id: row for row in ctx.rows(StrippedContext, stage)}
        for episode in ctx.rows(Episode, stage):
            if not usable(episode) or episode.reward <= 0:
                continue
            record = record_of(played, episode.generation_id)
            # An attempt that went by the prompt's own instructions was played in the context of the first prompt.
            made: StrippedContext | Generation = contexts[episode.episode_id] if episode.guided else record
            yield Internalized(record, episode.reward, made.token_ids, made.loss_mask, made.choices)


def _credits(ctx: StageContext) -> list[Credit]:
    """One use per memory that a reflection read: the outcome of the attempt that the reflection guided.

    A malformed reflection guided none.
    """
    found = []
    for revision in range(1, config_of(ctx.method).revisions + 1):
        retries = {row.episode_id: row for row in ctx.rows(Episode, attempt_stage(revision))}
        guided = {row.retry_id for row in ctx.rows(Reflection, reflect_stage(revision)) if row.reason_code == OK}
        for row in ctx.rows(Retrieval, reflect_stage(revision)):
            if row.chosen and row.episode_id in guided and usable(retries[row.episode_id]):
                found.append(
                    Credit(
                        round=ctx.round,
                        episode_id=row.episode_id,
                        entry_id=row.entry_id,
                        content_digest=row.content_digest,
                        generation_id=row.generation_id,
                        outcome=outcome(retries[row.episode_id]),
                        free_mean=None,
                        guided_minus_free=None,
                    )
                )
    return found


def _generations(ctx: StageContext, stage: str) -> dict[str, Generation]:
    return {row.generation_id: row for row in ctx.rows(Generation, stage)}
