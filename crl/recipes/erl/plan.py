"""Stage `plan`: which tasks a round plays, a group of first attempts at each. Nothing guides a first attempt."""

from __future__ import annotations

from crl.recipes.erl.rows import FIRST
from crl.records import Task
from crl.rounds.context import StageContext
from crl.rounds.tasks import drawn_tasks


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round."""
    ctx.write(Task, drawn_tasks(ctx, lambda size: [FIRST] * size))
