"""Stage `reflect`: new instructions from an attempt, what the environment said about it, and the memory.

Only attempts that earned less than the gate are reflected on. A trajectory that does not fit the reflector's context is
shortened in its middle, and the row says how many turns were shown; where even that does not help, nothing is sampled,
and the row says so. Parts are those of the attempts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from crl.extractor.trajectory import render_trajectory
from crl.protocols import Policy, ToolCalls
from crl.recipes.erl.attempts import Pending, attempt_id, attempt_stage, pending
from crl.recipes.erl.config import ACTOR, REFLECT, REFLECTOR, reflect_of
from crl.recipes.erl.memory import retrieved, texts_of
from crl.recipes.erl.prompts import Attempt, parsed, reflect_messages
from crl.recipes.erl.rows import Reflection
from crl.records import Generation, Retrieval, Turn
from crl.rounds.context import StageContext
from crl.rounds.ready import chat_of
from crl.rounds.waves import planned_wave, starts_of
from crl.rounds.weights import recorded, weights_of
from crl.run.seeds import number_of
from crl.text.calls import actions_text
from crl.text.outputs import Prompt, fill, placeholders, prepared, room_for_prompt, sample_outputs

SHORTEST = 120
"""Characters below which a trajectory says too little to reflect on."""


def reflect_part(ctx: StageContext, part: int, *, revision: int) -> None:
    """One reflection per attempt of a wave that is tried again."""
    again = pending(ctx, planned_wave(ctx, part), revision)
    retrievals = retrieved(ctx, again, revision)
    rows, records = _written(ctx, again, retrievals, revision) if again else ([], [])
    ctx.write(Reflection, rows)
    ctx.write(Retrieval, retrievals)
    ctx.write(Generation, records)


def _written(
    ctx: StageContext, again: Sequence[Pending], retrievals: Sequence[Retrieval], revision: int
) -> tuple[list[Reflection], list[Generation]]:
    config, role, weights = reflect_of(ctx.method), ctx.method.role(REFLECTOR), weights_of(ctx, REFLECTOR)
    policy = ctx.services.policy(REFLECTOR, weights)
    texts = texts_of(ctx, retrievals)
    shown: dict[str, list[Retrieval]] = defaultdict(list)
    for row in sorted(retrievals, key=lambda row: row.rank):
        if row.chosen:
            shown[row.episode_id].append(row)
    attempts = _attempts(ctx, again, revision)
    room, fitted = room_for_prompt(policy, role), []
    for each, attempt in zip(again, attempts, strict=True):
        memory = [texts[row.content_digest] for row in shown[attempt_id(each.task.episode_id, revision)]]
        fitted.append(_fitted(ctx, policy, attempt, memory, room))
    ctx.progress(0, len(again))
    outputs = sample_outputs(policy, [prompt for prompt, _ in fitted], role.sampling, batch=config.batch)
    rows, records = [], []
    for each, attempt, output, (_, turns_shown) in zip(again, attempts, outputs, fitted, strict=True):
        retry_id = attempt_id(each.task.episode_id, revision)
        reason_code, text = parsed(output, config)
        read = [] if output.sampled is None else shown[retry_id]
        rows.append(
            Reflection(
                reflection_id=output.prompt.name,
                round=ctx.round,
                family=each.task.family,
                revision=revision,
                episode_id=each.before.episode_id,
                retry_id=retry_id,
                reward=each.before.reward,
                feedback=attempt.feedback,
                entry_ids=[row.entry_id for row in read],
                content_digests=[row.content_digest for row in read],
                reason_code=reason_code,
                text=text,
                turns=len(attempt.turns),
                turns_shown=turns_shown,
                generation_id=f"g-{output.prompt.name}",
            )
        )
        records.append(recorded(ctx, output, REFLECTOR, REFLECT, weights))
    ctx.progress(len(again), len(again), malformed=sum(row.text is None for row in rows))
    return rows, records


def _attempts(ctx: StageContext, again: Sequence[Pending], revision: int) -> list[Attempt]:
    """What there is to reflect on, with the instructions that each attempt went by."""
    turns: dict[str, list[Turn]] = defaultdict(list)
    wanted = {each.before.episode_id for each in again}
    for turn in ctx.rows(Turn, attempt_stage(revision - 1)):
        if turn.episode_id in wanted:
            turns[turn.episode_id].append(turn)
    own = _own_instructions(ctx, again)
    return [
        Attempt(
            each.before,
            tuple(sorted(turns[each.before.episode_id], key=lambda turn: turn.turn)),
            each.before.experience if each.before.experience is not None else instructions,
        )
        for each, instructions in zip(again, own, strict=True)
    ]


def _own_instructions(ctx: StageContext, again: Sequence[Pending]) -> list[str]:
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


def _fitted(
    ctx: StageContext, policy: Policy, attempt: Attempt, memory: Sequence[str], room: int
) -> tuple[Prompt, int]:
    """The prompt with as much of the trajectory as fits into `room` tokens, and how many turns it shows in full."""
    prompt, config = ctx.method.prompts_of(attempt.episode.family)[REFLECT], reflect_of(ctx.method)
    name = f"f-{attempt.episode.episode_id}"
    seed = number_of(ctx.seed(name))

    def made(budget: int | None) -> Prompt:
        return prepared(policy, name, reflect_messages(prompt, attempt, memory, config, budget), room, seed=seed)

    whole = made(None)
    if whole.token_ids is not None:
        return whole, len(attempt.turns)
    rendered = render_trajectory(attempt.turns, attempt.episode.last_observation)
    fits, too_much, best = SHORTEST, len(rendered.text), made(SHORTEST)
    if best.token_ids is None:
        return best, 0
    while too_much - fits > max(16, fits // 32):
        tried = made(budget := (fits + too_much) // 2)
        if tried.token_ids is None:
            too_much = budget
        else:
            fits, best = budget, tried
    return best, render_trajectory(attempt.turns, attempt.episode.last_observation, fits).turns_shown
