"""Stage `plan`: which tasks a round plays, a group of free episodes at each; none that is set apart for probes."""

from __future__ import annotations

from crl.recipes.importance_replay.config import config_of
from crl.records import FREE, Task
from crl.rounds.context import StageContext
from crl.rounds.tasks import drawn_tasks


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round."""
    ctx.write(Task, drawn_tasks(ctx, lambda size: [FREE] * size, config_of(ctx.method).training_seeds))
