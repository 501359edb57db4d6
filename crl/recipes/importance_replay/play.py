"""What a round plays: stages `plan` and `collect`, and as `probe_before` and `probe_after` held-out training tasks, or
those that the update learns from, with the weights before an update and after it.

Common random numbers: a round's tasks are drawn anew from those that only probes play, and an episode before and its
twin after have the same level and the same random stream. Nothing is played where the update has nothing to train or
took no step: weights are never compared with themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from crl.config import FamilyConfig
from crl.recipes.importance_replay.config import ACTOR, config_of
from crl.recipes.importance_replay.rows import PROBE, ReplayDraw
from crl.records import FREE, Sample, Task
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE
from crl.rounds.tasks import TaskSeed, distinct, drawn_tasks, tasks_at, waves_over
from crl.rounds.waves import play_with_actor, starts_of, write_played
from crl.rounds.weights import weights_of
from crl.run.seeds import seed_for

BEFORE_UPDATE, AFTER_UPDATE = "probe_before", "probe_after"


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round: a group of free episodes at each, none that is set apart for probes."""
    ctx.write(Task, drawn_tasks(ctx, lambda size: [FREE] * size, config_of(ctx.method).training_seeds))


def probe_id(round_number: int, stage: str, family: str, environment_seed: int) -> str:
    """Id of a probe's episode; twins differ in the stage."""
    return f"p{round_number:04d}-{stage.removeprefix('probe_')}-{family}-s{environment_seed}"


def probed(ctx: StageContext) -> dict[str, list[int]]:
    """Environment seeds that a round probes, by family: distinct, drawn from the family's pool, or from the tasks of
    the samples that the update draws."""
    config, found = config_of(ctx.method), {}
    draws = ctx.rows(ReplayDraw, "credit") if config.probe.scope == "task" else []
    for family in ctx.method.families:
        kept = config.probe_seeds(family)
        pool: Sequence[int] = range(kept.start, kept.start + kept.count)
        if config.probe.scope == "task":
            tasks = {row.environment_seed for row in draws if row.family == family.name}
            pool = sorted(seed for seed in tasks if seed is not None)
        generator = np.random.default_rng(seed_for(ctx.method.seed, ctx.round, PROBE, family.name))
        count = min(config.probe.tasks, len(pool))
        chosen = generator.choice(len(pool), size=count, replace=False).tolist() if count else list[int]()
        found[family.name] = sorted(pool[place] for place in chosen)
    return found


def count_probes(ctx: StageContext) -> int:
    """Waves of the probes; one that is empty where nothing is to be measured."""
    return max(1, len(_waves(ctx)))


def probe_part(ctx: StageContext, part: int) -> None:
    """Play one wave of probes with the weights that the stage reads."""
    write_played(ctx, [each for wave in _waves(ctx)[part : part + 1] for each in _played(ctx, wave)])


def _waves(ctx: StageContext) -> list[list[TaskSeed]]:
    if not _moves(ctx):
        return []
    seeds, trained = probed(ctx), {task.task_digest for task in ctx.rows(Task, "plan")}
    if config_of(ctx.method).probe.scope == "task":
        return waves_over(ctx.method, lambda family: seeds[family.name])
    return waves_over(ctx.method, lambda family: _untrained(ctx, family, seeds[family.name], trained))


def _untrained(ctx: StageContext, family: FamilyConfig, seeds: list[int], trained: set[str]) -> list[int]:
    """Of some seeds those whose tasks differ and were not trained in this round under other seeds. For the others
    there are further ones of the pool, as far as it has any."""
    pool = config_of(ctx.method).probe_seeds(family)
    others = sorted({*range(pool.start, pool.start + pool.count)} - {*seeds})
    found = distinct(
        [*seeds, *others],
        len(seeds),
        lambda those: starts_of(ctx, [(family.name, seed) for seed in those], played_here=True),
        trained - {""},
    )
    return sorted(seed for seed, _ in found)


def _moves(ctx: StageContext) -> bool:
    """Whether the update may move the weights, as far as is known before it; after it whether it did."""
    if ctx.stage.name == AFTER_UPDATE:
        before, after = weights_of(ctx, ACTOR, read=BEFORE), weights_of(ctx, ACTOR)
        return before.weights_digest != after.weights_digest
    samples = ctx.table(Sample, "credit")
    return bool(pc.any(pc.not_equal(pc.multiply(samples["weight"], samples["advantage"]), 0.0)).as_py())


def _played(ctx: StageContext, wave: Sequence[TaskSeed]) -> list[PlayedEpisode]:
    tasks = tasks_at(
        ctx, wave, name=lambda family, seed: probe_id(ctx.round, ctx.stage.name, family, seed), stream=PROBE
    )
    places = {task.episode_id: (task.family, task.environment_seed) for task in tasks}
    return play_with_actor(
        ctx,
        [EpisodeSlot(task) for task in tasks],
        groups=False,
        # The same stream before and after: what differs then is the weights alone.
        seed_of=lambda episode_id: seed_for(ctx.method.seed, ctx.round, PROBE, "play", *places[episode_id]),
    )
