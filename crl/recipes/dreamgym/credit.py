"""Stage `credit`: the samples of the actor, the share of synthetic ones among them, and what every task earned.

Episodes are trained with GRPO, normalized among their own (task, stream); a group is played in one environment. An
update is one step on the episodes of its round; or they enter pools, which several steps draw batches from
(`pools.py`). The loss of a step is the mean over its episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crl.credit.advantages import stream_advantages
from crl.credit.buffer import ORDERS_A_ROUND
from crl.credit.samples import (
    Rollout,
    grpo_sample,
    record_of,
    records_of,
    rewarded,
    rollout_samples,
    trained_episodes,
    weighed,
)
from crl.credit.uses import usable
from crl.recipes.dreamgym.collect import COLLECT, PLAN
from crl.recipes.dreamgym.config import ACTOR, PoolsConfig, config_of
from crl.recipes.dreamgym.plan import task_values
from crl.recipes.dreamgym.pools import drawn, pools_after
from crl.recipes.dreamgym.rows import (
    GIVEN,
    HELD,
    REAL,
    DreamTask,
    PoolBatch,
    PoolDraw,
    PooledEpisode,
    TaskValue,
)
from crl.records import SYNTHETIC, Episode, Generation, Sample, Task
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE


def credit(ctx: StageContext) -> None:
    """Samples, values of the tasks, metrics."""
    config, episodes = config_of(ctx.method), ctx.rows(Episode, COLLECT)
    records = {row.generation_id: row for row in ctx.rows(Generation, COLLECT)}
    sound = [episode for episode in episodes if usable(episode)]
    # A synthetic group is the curriculum's choice, whatever came of it.
    taught = {row.episode_id for row in trained_episodes(sound, ctx.method.rollout.dynamic_sampling)}
    trained = [row for row in sound if row.stream == SYNTHETIC or row.episode_id in taught]
    errored = len(episodes) - len(sound)
    metrics: dict[str, float] = {"rollouts": len(trained), "episodes_errored": errored}
    told = f"{errored} of {len(episodes)} episodes broke and train nothing"
    alarms = {"episodes_errored": told if errored else None}
    if config.pools is None:
        rollouts = [
            Rollout(ACTOR, records_of(episode, records), episode.reward, _group(episode)) for episode in trained
        ]  # fmt: skip
        samples = rollout_samples(rollouts, config.objective, lambda role: 1 / len(rollouts), round=ctx.round)
        if trained:
            metrics["synthetic_share"] = synthetic_share(trained)
    else:
        given = [episode for episode in ctx.rows(Episode, GIVEN) if usable(episode)]
        records |= {row.generation_id: row for row in ctx.rows(Generation, GIVEN)}
        new = _entering(ctx, [*given, *trained], records)
        items = pools_after(ctx.rows(PooledEpisode, BEFORE), new, config.pools)
        samples = _drawn(ctx, items, config.pools, metrics)
        ctx.write(PooledEpisode, items)
        metrics["pool_entered"] = len(new)
        if not samples:
            metrics["pool_batches"] = 0
            alarms["pool_batches"] = "a pool that batches need is empty, so nothing is trained"
    ctx.write(Sample, samples)
    ctx.write(TaskValue, task_values(ctx.rows(Task, PLAN), ctx.rows(DreamTask, PLAN), episodes))
    ctx.write_metrics(metrics, alarms)


def _group(episode: Episode) -> tuple[str, int, str]:
    return episode.family, episode.group, episode.stream


def _entering(ctx: StageContext, episodes: Sequence[Episode], records: dict[str, Generation]) -> list[PooledEpisode]:
    """The episodes that have an advantage among their group, and a token to train."""
    objective = config_of(ctx.method).objective
    rewards = [rewarded(episode.reward, records_of(episode, records), objective) for episode in episodes]
    advantages = stream_advantages(rewards, [_group(episode) for episode in episodes], objective)
    found = []
    for place, (episode, reward, advantage) in enumerate(zip(episodes, rewards, advantages, strict=True)):
        own = records_of(episode, records)
        if advantage and any(any(record.loss_mask) for record in own):
            found.append(
                PooledEpisode(
                    pool=SYNTHETIC if episode.stream == SYNTHETIC else REAL, episode_id=episode.episode_id,
                    family=episode.family, generation_round=own[0].round, generation_stage=own[0].stage,
                    generation_ids=episode.generation_ids, reward=reward, advantage=float(advantage),
                    entered_order=ctx.round * ORDERS_A_ROUND + place, status=HELD,
                )
            )  # fmt: skip
    return found


def _drawn(
    ctx: StageContext, items: Sequence[PooledEpisode], config: PoolsConfig, metrics: dict[str, float]
) -> list[Sample]:
    """The samples of every step's batch; the batches and their draws are written."""
    held = [item for item in items if item.status == HELD]
    share = config_of(ctx.method).real_share(ctx.round)
    batches = drawn(held, config, share, np.random.default_rng(ctx.seed("draw")))
    counts = {pool: sum(item.pool == pool for item in held) for pool in (REAL, SYNTHETIC)}
    metrics |= {f"pool_episodes_{pool}": count for pool, count in counts.items()}
    records = ctx.generations_at(
        (item.generation_round, item.generation_stage, name)
        for batch in batches
        for item in batch
        for name in item.generation_ids
    )
    samples: list[Sample] = []
    rows: list[PoolBatch] = []
    for step, batch in enumerate(batches):
        real = sum(item.pool == REAL for item in batch)
        rows.append(
            PoolBatch(
                step=step, real_share=share, real=real, synthetic=len(batch) - real, real_held=counts[REAL],
                synthetic_held=counts[SYNTHETIC], real_capacity=config.real, synthetic_capacity=config.synthetic,
            )
        )  # fmt: skip
        rollouts = [([record_of(records, name) for name in item.generation_ids], 1 / len(batch)) for item in batch]
        for item, sequences in zip(batch, weighed(rollouts, config_of(ctx.method).objective), strict=True):
            samples += [
                grpo_sample(record, ACTOR, item.reward, item.advantage, weight, round=ctx.round, step=step)
                for record, weight in sequences
            ]
    draws = [
        PoolDraw(
            step=step, pool=item.pool, episode_id=item.episode_id, family=item.family,
            age=ctx.round - item.generation_round,
        )
        for step, batch in enumerate(batches)
        for item in batch
    ]  # fmt: skip
    if batches:
        metrics["pool_batches"] = len(batches)
        metrics["synthetic_share"] = sum(row.synthetic for row in rows) / len(draws)
    ctx.write(PoolBatch, rows)
    ctx.write(PoolDraw, draws)
    return samples


def synthetic_share(episodes: Sequence[Episode]) -> float:
    """Share of the episodes that were played in the experience model; 0 of none."""
    return sum(episode.stream == SYNTHETIC for episode in episodes) / len(episodes) if episodes else 0.0
