"""Stage `collect`: play the planned episodes with the actor of the round before, one wave per part."""

from __future__ import annotations

from crl.records import Task
from crl.rollout.play import EpisodeSlot, waves_of
from crl.rounds.context import StageContext
from crl.rounds.waves import play_with_actor, together, write_played


def count_parts(ctx: StageContext) -> int:
    """Waves of the round."""
    return len(_waves(ctx))


def collect_part(ctx: StageContext, part: int) -> None:
    """Play one wave."""
    write_played(ctx, play_with_actor(ctx, [EpisodeSlot(task) for task in _waves(ctx)[part]]))


def _waves(ctx: StageContext) -> list[list[Task]]:
    return waves_of(ctx.rows(Task, "plan"), ctx.method.rollout.wave_groups, together(ctx.method))
