"""Stage `credit`: the samples of every stream, what is internalized, and what each memory earned.

First attempts, reflections and further attempts are trained with GRPO, each normalized among its own (task, stream,
revision); a reflection earns the reward of the attempt that it guided. A guided attempt that earned something is also
learned by next-token loss in the context of the first prompt.

The loss is the mean over the attempts and reflections that train a set of weights, the internalized ones included; over
the tokens of one it is what `objective.loss_type` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from crl.config import Method
from crl.credit.samples import (
    Rollout,
    record_of,
    records_of,
    rollout_samples,
    sample_of,
    stripped_records,
    token_factor,
    trained_episodes,
    trained_of,
)
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

    records: Sequence[Generation]
    """Its sequences in that context."""
    reward: float


def credit(ctx: StageContext) -> None:
    """Samples of every role, credits of the memories that were read, metrics."""
    config, rollouts, learned = config_of(ctx.method), [*_rollouts(ctx)], [*_internalized(ctx)]
    ctx.write(Sample, samples_of(rollouts, learned, ctx.method, round=ctx.round))
    if config.has_memory:
        credits = _credits(ctx)
        ctx.write(Credit, credits)
        ctx.write(EntryScore, entry_scores(ctx.rows(EntryScore, BEFORE), credits))
    errored = sum(not usable(row) for stage in _attempt_stages(config) for row in ctx.rows(Episode, stage))
    broke = f"{errored} episodes broke and train nothing" if errored else None
    metrics = {"rollouts": len(rollouts), "distilled_samples": len(learned), "episodes_errored": errored}
    ctx.write_metrics(metrics, {"episodes_errored": broke})


def samples_of(
    rollouts: Sequence[Rollout], learned: Sequence[Internalized], method: Method, *, round: int
) -> list[Sample]:
    """The GRPO samples of attempts and reflections, then the next-token samples of internalized attempts, in their
    order; one per sequence.

    With N of them to a set of weights, internalized ones included, a rollout has the weight 1/N. The update divides the
    next-token loss by the T tokens of all its samples, so an attempt of reward r has the weight c max(r, 0) T/N
    (c: `internalize.weight`), and as in the policy objective also 1 over its own tokens (`grpo`), or `token_factor`.
    """
    config = config_of(method)
    counts = Counter(method.owner(each.role) for each in rollouts)
    counts[method.owner(ACTOR)] += len(learned)
    found = rollout_samples(
        rollouts, config.objective, lambda role: 1 / counts[method.owner(role)], round=round, owner=method.owner
    )
    lengths = [_written(each.records) for each in learned]
    beside = [_written(each.records) for each in rollouts if method.owner(each.role) == method.owner(ACTOR)] or lengths
    factor_of_tokens = token_factor(config.objective, [1.0] * len(beside), beside)
    factor = config.internalize.weight if config.internalize is not None else 0.0
    for each, trained in zip(learned, lengths, strict=True):
        own = 1 / max(trained, 1) if config.objective.loss_type == "grpo" else factor_of_tokens
        weight = factor * max(each.reward, 0.0) * sum(lengths) / counts[method.owner(ACTOR)] * own
        for record in trained_of(each.records):
            sample = sample_of(
                record, round=round, role=ACTOR, objective="nll", reward=each.reward, advantage=1.0, weight=weight
            )
            found.append(replace(sample, sample_id=f"{sample.sample_id}{SUFFIX}"))
    return found


def _written(records: Sequence[Generation]) -> int:
    return sum(sum(record.loss_mask) for record in records)


def _attempt_stages(config: ErlConfig) -> list[str]:
    return [attempt_stage(revision) for revision in range(config.revisions + 1)]


def _rollouts(ctx: StageContext) -> Iterator[Rollout]:
    """All that a policy objective trains: first attempts, then of each revision reflections and attempts."""
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
                    yield Rollout(REFLECTOR, [record], reflection_reward(row, retry, config), group)
        yield from _of_attempts(ctx, revision, SECOND)


def reflection_reward(row: Reflection, retry: Episode, config: ErlConfig) -> float:
    """r2 of the attempt that it guided; of a malformed one what the experiment says."""
    malformed = config.reflect.malformed_reward if config.reflect is not None else "outcome"
    return retry.reward if row.reason_code == OK or malformed == "outcome" else malformed


def _of_attempts(ctx: StageContext, revision: int, stream: str) -> Iterator[Rollout]:
    played = _generations(ctx, attempt_stage(revision))
    episodes = ctx.rows(Episode, attempt_stage(revision))
    if revision == 0:  # further attempts answer the first ones, whatever these teach
        episodes = trained_episodes(episodes, ctx.method.rollout.dynamic_sampling)
    for episode in episodes:
        if usable(episode):
            group = (episode.family, episode.group, stream, revision)
            yield Rollout(ACTOR, records_of(episode, played), episode.reward, group)


def _internalized(ctx: StageContext) -> Iterator[Internalized]:
    config = config_of(ctx.method)
    if config.internalize is None:
        return
    for revision in range(1, config.revisions + 1):
        stage = attempt_stage(revision)
        played = _generations(ctx, stage)
        contexts = {row.generation_id: row for row in ctx.rows(StrippedContext, stage)}
        for episode in ctx.rows(Episode, stage):
            if usable(episode) and episode.reward > 0:
                # An attempt that went by the prompt's own instructions was played in the context of the first prompt.
                yield Internalized(stripped_records(episode, played, contexts), episode.reward)


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
