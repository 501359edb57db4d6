"""Stage `credit`: the samples of the actor, the share of synthetic ones among them, and what every task earned.

Episodes are trained with GRPO, normalized among their own (task, stream); a group is played in one environment. The
share of synthetic episodes among those that are trained is bounded by `mix`: where real episodes broke, the last
synthetic groups are left out until it holds. The loss is the mean over the episodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from crl.credit.samples import Rollout, records_of, rollout_samples, trained_episodes
from crl.credit.uses import usable
from crl.recipes.dreamgym.collect import COLLECT, PLAN
from crl.recipes.dreamgym.config import ACTOR, config_of
from crl.recipes.dreamgym.plan import task_values
from crl.recipes.dreamgym.rows import DreamTask, TaskValue
from crl.records import SYNTHETIC, Episode, Generation, Sample, Task
from crl.rounds.context import StageContext


def credit(ctx: StageContext) -> None:
    """Samples, values of the tasks, metrics."""
    config, share = config_of(ctx.method), config_of(ctx.method).share(ctx.round)
    episodes = ctx.rows(Episode, COLLECT)
    records = {row.generation_id: row for row in ctx.rows(Generation, COLLECT)}
    sound = [episode for episode in episodes if usable(episode)]
    taught = {row.episode_id for row in trained_episodes(sound, ctx.method.rollout.dynamic_sampling)}
    # A synthetic group is the curriculum's choice, whatever came of it.
    trained = within_mix([row for row in sound if row.stream == SYNTHETIC or row.episode_id in taught], share)
    rollouts = [
        Rollout(
            ACTOR, records_of(episode, records), episode.reward, (episode.family, episode.group, episode.stream)
        )
        for episode in trained
    ]  # fmt: skip
    ctx.write(Sample, rollout_samples(rollouts, config.objective, lambda role: 1 / len(rollouts), round=ctx.round))
    ctx.write(TaskValue, task_values(ctx.rows(Task, PLAN), ctx.rows(DreamTask, PLAN), episodes))
    errored = len(episodes) - len(sound)
    metrics: dict[str, float] = {
        "rollouts": len(rollouts),
        "synthetic_bound": share,
        "synthetic_left_out": sum(row.stream == SYNTHETIC for row in sound)
        - sum(row.stream == SYNTHETIC for row in trained),
        "episodes_errored": errored,
    }
    if trained:
        metrics["synthetic_share"] = synthetic_share(trained)
    told = f"{errored} of {len(episodes)} episodes broke and train nothing"
    ctx.write_metrics(metrics, {"episodes_errored": told if errored else None})


def synthetic_share(episodes: Sequence[Episode]) -> float:
    """Share of the episodes that were played in the experience model; 0 of none."""
    return sum(episode.stream == SYNTHETIC for episode in episodes) / len(episodes) if episodes else 0.0


def within_mix(episodes: Sequence[Episode], share: float) -> list[Episode]:
    """The episodes without the last synthetic groups, as many as make their share at most `share`; in their order."""
    groups = Counter((episode.family, episode.group) for episode in episodes if episode.stream == SYNTHETIC)
    synthetic, real = sum(groups.values()), sum(episode.stream != SYNTHETIC for episode in episodes)
    left_out = set()
    for group in sorted(groups, key=lambda each: each[1], reverse=True):
        if synthetic <= share * (synthetic + real) + 1e-9:
            break
        left_out.add(group)
        synthetic -= groups[group]
    return [
        episode
        for episode in episodes
        if episode.stream != SYNTHETIC or (episode.family, episode.group) not in left_out
    ]
