"""Stage `plan`: which tasks a round plays, a group of first attempts at each. Nothing guides a first attempt."""

from __future__ import annotations

import dataclasses

import numpy as np

from crl.config import FamilyConfig
from crl.recipes.complementary.plan import task_of
from crl.recipes.context import StageContext
from crl.recipes.erl.rows import FIRST
from crl.records import Task
from crl.rollout.readable import Readable


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round."""
    tasks: list[Task] = []
    for family in ctx.method.families:
        tasks += _family_tasks(ctx, family, first_group=len({task.group for task in tasks}))
        ctx.progress(len(tasks), sum(each.groups * ctx.method.group_size(each) for each in ctx.method.families))
    ctx.write(Task, tasks)


def _family_tasks(ctx: StageContext, family: FamilyConfig, first_group: int) -> list[Task]:
    seeds = family.train_seeds
    generator = np.random.default_rng(ctx.seed(family.name))
    # Distinct tasks where the range allows it, so that a round is not the same task over and over.
    drawn = generator.choice(seeds.count, size=family.groups, replace=family.groups > seeds.count)
    environment_seeds = [seeds.start + int(value) for value in drawn]
    longest = ctx.method.rollout.longest_observation
    starts = Readable(ctx.services.environment(family.name), longest).reset_many(environment_seeds)
    tasks = []
    for group, (environment_seed, start) in enumerate(zip(environment_seeds, starts, strict=True), first_group):
        for member in range(ctx.method.group_size(family)):
            task = task_of(
                ctx,
                start,
                episode_id=f"r{ctx.round:04d}-{family.name}-g{group:04d}-m{member:03d}",
                family=family.name,
                group=group,
                environment_seed=environment_seed,
                member=member,
            )
            tasks.append(dataclasses.replace(task, stream=FIRST))
    return tasks
