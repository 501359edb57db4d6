"""Stages `plan`, `collect` and `retry`: first attempts, and attempts after one that earned less than the gate.

A further attempt begins anew, in the same level, with its own random stream. The reflection replaces the
instructions; where it is malformed the instructions stay as they were. With `revision.shows_attempt` the attempt before
follows them; else nothing of it is in the context. Both stages have parts: a part is a wave of whole groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from crl.bank.segments import text_digest
from crl.credit.uses import usable
from crl.protocols import ToolCalls
from crl.recipes.erl.config import ACTOR, config_of
from crl.recipes.erl.prompts import Attempt
from crl.recipes.erl.rows import FIRST, SECOND, Reflection
from crl.records import Episode, StrippedContext, Task, Turn, turns_by_episode
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, stripped_contexts
from crl.rounds.context import StageContext
from crl.rounds.ready import chat_of
from crl.rounds.tasks import drawn_tasks
from crl.rounds.waves import planned_wave, play_with_actor, starts_of, write_played
from crl.text.calls import actions_text
from crl.text.outputs import fill, placeholders

COLLECT, PLAN = "collect", "plan"
OWN, ATTEMPT = "instructions", "attempt"
"""What a further attempt is guided by beside entries of the memory: the prompt's own instructions, where an attempt is
shown behind them, and that attempt."""
HEADING = "The attempt before:"


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
    config, again = config_of(ctx.method), pending(ctx, planned_wave(ctx, part), revision)
    written = {}
    if config.reflect is not None:
        written = {row.retry_id: row for row in ctx.rows(Reflection, reflect_stage(revision))}
    shown = attempts_before(ctx, again, revision) if config.revision.shows_attempt else [None] * len(again)
    slots = []
    for (task, before), attempt in zip(again, shown, strict=True):
        name = attempt_id(task.episode_id, revision)
        guides = _instructions(before, written.get(name))
        if attempt is not None:
            guides = guides or [_guide(OWN, attempt.instructions)]
            guides.append(_guide(ATTEMPT, f"{HEADING}\n{attempt.text(config.attempt_characters)}"))
        retry = dataclasses.replace(task, episode_id=name, stream=SECOND)
        slots.append(EpisodeSlot(retry, tuple(guides), as_instructions=bool(guides)))
    played = play_with_actor(ctx, slots, temperature=config.revision.temperature)
    write_played(ctx, played)
    if config.internalize is not None:
        guided = [each for each in played if each.episode.guided]
        ctx.write(StrippedContext, [row for each in guided for row in stripped_contexts(each)])


def _guide(name: str, text: str) -> Guide:
    return Guide(name, text_digest(text), text)


def _instructions(before: Episode, reflection: Reflection | None) -> list[Guide]:
    """The instructions of a further attempt; none where the prompt's own stay."""
    if reflection is not None and reflection.text is not None:
        return [_guide(entry_id_of(reflection.reflection_id), reflection.text)]
    # Those that the attempt before went by.
    shown = zip(before.entry_ids, before.content_digests, before.experiences, strict=True)
    return [Guide(*each) for each in shown][:1]


def attempts_before(ctx: StageContext, again: Sequence[Pending], revision: int) -> list[Attempt]:
    """The attempts before those of a revision, with the instructions that each went by."""
    wanted = {each.before.episode_id for each in again}
    turns = turns_by_episode(row for row in ctx.rows(Turn, attempt_stage(revision - 1)) if row.episode_id in wanted)
    own = own_instructions(ctx, again)
    return [
        Attempt(
            each.before,
            tuple(turns.get(each.before.episode_id, ())),
            each.before.experiences[0] if each.before.guided else instructions,
        )
        for each, instructions in zip(again, own, strict=True)
    ]


def own_instructions(ctx: StageContext, again: Sequence[Pending]) -> list[str]:
    """The system text of the actor's prompt, filled as it was for each task."""
    templates = [ctx.method.prompts_of(each.task.family)[ACTOR].system for each in again]
    actions = [""] * len(again)
    if any("actions" in placeholders(template) for template in set(templates)):
        # Only the environment knows what could be done at the start.
        starts = starts_of(ctx, [(each.task.family, each.task.environment_seed) for each in again])
        calls = any(isinstance(start.actions, ToolCalls) for start in starts)
        takes_tools = calls and chat_of(ctx.method, ACTOR).takes_tools
        actions = [actions_text(start.actions, takes_tools=takes_tools) for start in starts]
    return [
        fill(template, {"goal": each.task.goal, "actions": text})
        for each, template, text in zip(again, templates, actions, strict=True)
    ]
