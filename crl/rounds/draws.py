"""Dynamic sampling (`rollout.dynamic_sampling`), in any recipe that says it can: what teaches nothing is drawn again.

A group teaches nothing where the outcome varies in none of its streams: every rollout has the advantage 0. Then another
task takes its place (DAPO, arXiv 2503.14476, eq. 8: 0 < solved rollouts < G), as often as `max_draws` says. A draw is
stages of its own, which are always listed, for which stages are due is known without rows: where nothing is drawn they
have one empty part. All that is drawn is recorded, read and counted as any episode; the policy objective leaves out
the groups that teach it nothing (`crl.credit.samples.trained_episodes`). Imitation of wins and a teacher, which compare
no rollouts of a stream, learn of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crl.config import Method
from crl.rounds.stage import BEFORE, Read, Recipe, Stage, read_beside

PLAN, COLLECT = "plan", "collect"


def with_draws(recipe: Recipe, method: Method) -> Recipe:
    """The recipe with as many further draws of the stages from `plan` to `collect` as the method has."""
    config = method.rollout.dynamic_sampling
    if config is None:
        return recipe
    listed = {stage.name: stage for stage in recipe.stages}
    between = read_beside(listed[COLLECT], listed) - {PLAN}
    own = [PLAN, *(name for name in listed if name in between and PLAN in read_beside(listed[name], listed)), COLLECT]
    further = [_again(listed[name], own, draw) for draw in range(2, config.max_draws + 1) for name in own]
    return replace(recipe, stages=(*recipe.stages, *further))


def _again(stage: Stage, own: Sequence[str], draw: int) -> Stage:
    """A further draw of a stage: it reads the stages of its own draw; a plan reads what was drawn before, also in place
    of the round before."""
    reads = [
        replace(read, stage=f"{read.stage}_{draw}") if read.offset == 0 and read.stage in own else read
        for read in stage.reads
    ]
    if stage.name == PLAN:
        reads = [*(read for read in reads if read.name != BEFORE), Read(PLAN, 0, BEFORE), Read(COLLECT)]
    return replace(stage, name=f"{stage.name}_{draw}", reads=tuple(reads))
