"""Stage `reflect`: new instructions from an attempt, what the environment said about it, and the memory.

Only attempts that earned less than the gate are reflected on. A trajectory that does not fit the reflector's context is
shortened in its middle, and the row says how many turns were shown; where even that does not help, nothing is sampled,
and the row says so. Parts are those of the attempts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from crl.extractor.trajectory import render_trajectory
from crl.protocols import Policy
from crl.recipes.erl.attempts import Pending, attempt_id, attempts_before, pending
from crl.recipes.erl.config import REFLECT, REFLECTOR, reflect_of
from crl.recipes.erl.memory import memories_of, retrieved
from crl.recipes.erl.prompts import Attempt, Memory, parsed, reflect_messages
from crl.recipes.erl.rows import Reflection
from crl.records import Generation, Retrieval
from crl.rounds.context import StageContext
from crl.rounds.waves import planned_wave
from crl.rounds.weights import recorded, weights_of
from crl.run.seeds import number_of
from crl.text.outputs import Prompt, prepared, room_for_prompt, sample_outputs

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
    memories = memories_of(ctx, retrievals)
    shown: dict[str, list[Retrieval]] = defaultdict(list)
    for row in sorted(retrievals, key=lambda row: row.rank):
        if row.chosen:
            shown[row.episode_id].append(row)
    attempts = attempts_before(ctx, again, revision)
    room, fitted = room_for_prompt(policy, role), []
    for each, attempt in zip(again, attempts, strict=True):
        memory = [memories[row.entry_id] for row in shown[attempt_id(each.task.episode_id, revision)]]
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


def _fitted(
    ctx: StageContext, policy: Policy, attempt: Attempt, memory: Sequence[Memory], room: int
) -> tuple[Prompt, int]:
    """The prompt with as much of the trajectory, and of the attempts of the memory, as fits into `room` tokens, and how
    many turns of the former it shows in full."""
    prompt, config = ctx.method.prompts_of(attempt.episode.family)[REFLECT], reflect_of(ctx.method)
    name = f"f-{attempt.episode.episode_id}"
    seed = number_of(ctx.seed(name))

    def made(budget: int | None) -> Prompt:
        return prepared(policy, name, reflect_messages(prompt, attempt, memory, config, budget), room, seed=seed)

    whole = made(None)
    if whole.token_ids is not None:
        return whole, len(attempt.turns)
    rendered = render_trajectory(attempt.turns, attempt.episode.last_observation)
    longest = max([len(rendered.text), *(len(each.first or "") for each in memory)])
    fits, too_much, best = SHORTEST, longest, made(SHORTEST)
    if best.token_ids is None:
        return best, 0
    while too_much - fits > max(16, fits // 32):
        tried = made(budget := (fits + too_much) // 2)
        if tried.token_ids is None:
            too_much = budget
        else:
            fits, best = budget, tried
    return best, render_trajectory(attempt.turns, attempt.episode.last_observation, fits).turns_shown
