"""Stages `plan`, `collect` and `retry`: first attempts, and attempts after one that earned less than the gate.

A further attempt begins anew, in the same level, with its own random stream. The reflection replaces the
instructions, and nothing of the attempt before is in its context; where the reflection is malformed the instructions
stay as they were. Both stages have parts: a part is a wave of whole groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from crl.bank.segments import text_digest
from crl.credit.uses import usable
from crl.recipes.erl.config import config_of
from crl.recipes.erl.rows import FIRST, SECOND, Reflection
from crl.records import Episode, StrippedContext, Task
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, stripped_contexts
from crl.rounds.context import StageContext
from crl.rounds.tasks import drawn_tasks
from crl.rounds.waves import planned_wave, play_with_actor, write_played

COLLECT, PLAN = "collect", "plan"


def reflect_stage(revision: int) -> str:
    """Name of the stage that reflects for the attempt of a revision, from 1."""
    return "reflect" if revision == 1 else f"reflect_{revision}"


def attempt_stage(revision: int) -> str:
    """Name of the stage that plays the attempts of a revision; 0: the first ones."""
    return COLLECT if revision == 0 else "retry" if revision == 1 else f"retry_{revision}"


def attempt_id(first_id: str, revision: int) -> str:
    """Id of an attempt of a revision: that of the first one, and how many there were."""
    return first_id if revision == 0 else f"{first_id}-a{revision + 1}"


def entry_id_of(reflection_id: str) -> str:
    """Id that a reflection has in the memory, if it is stored."""
    return f"x-{reflection_id}-o0"


class Pending(NamedTuple):
    """A task that is tried again: as planned, and the attempt before."""

    task: Task
    before: Episode


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round, a group of first attempts at each. Nothing guides a first attempt."""
    ctx.write(Task, drawn_tasks(ctx, lambda size: [FIRST] * size))


def pending(ctx: StageContext, tasks: Sequence[Task], revision: int) -> list[Pending]:
    """Which tasks are tried again in a revision: those whose attempt before ended by the rules and earned too little.

    In the order of the tasks.
    """
    config, stage = config_of(ctx.method), attempt_stage(revision - 1)
    before = {episode.episode_id: episode for episode in ctx.rows(Episode, stage)}
    found = []
    for task in tasks:
        episode = before.get(attempt_id(task.episode_id, revision - 1))
        if episode is not None and usable(episode) and not config.passes(episode.reward):
            found.append(Pending(task, episode))
    return found


def retry_part(ctx: StageContext, part: int, *, revision: int) -> None:
    """Play the further attempts of one wave, each by its reflection; and their contexts without it."""
    again = pending(ctx, planned_wave(ctx, part), revision)
    written = {}
    if config_of(ctx.method).reflect is not None:
        written = {row.retry_id: row for row in ctx.rows(Reflection, reflect_stage(revision))}
    slots = []
    for task, before in again:
        name = attempt_id(task.episode_id, revision)
        slots.append(_slot(dataclasses.replace(task, episode_id=name, stream=SECOND), before, written.get(name)))
    played = play_with_actor(ctx, slots)
    write_played(ctx, played)
    if config_of(ctx.method).internalize is not None:
        guided = [each for each in played if each.episode.guided]
        ctx.write(StrippedContext, [row for each in guided for row in stripped_contexts(each)])


def _slot(task: Task, before: Episode, reflection: Reflection | None) -> EpisodeSlot:
    if reflection is not None and reflection.text is not None:
        digest = text_digest(reflection.text)
        entry_id = entry_id_of(reflection.reflection_id)
        return EpisodeSlot(task, (Guide(entry_id, digest, reflection.text),), as_instructions=True)
    # The instructions stay: the prompt's own, or those that the attempt before went by.
    shown = zip(before.entry_ids, before.content_digests, before.experiences, strict=True)
    return EpisodeSlot(task, tuple(Guide(*each) for each in shown), as_instructions=before.guided)
