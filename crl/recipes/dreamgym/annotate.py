"""Stage `annotate`: a teacher says why real transitions are as they are; the experience model learns to say it first.

At a fit those are asked about that nobody was asked about yet, as far as the fit learns them: what came into the real
pool since the fit before, and in a fork what came in while there was no teacher.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.recipes.dreamgym.config import ANNOTATE, TEACHER, config_of
from crl.recipes.dreamgym.form import OK, one_line, predicted_part
from crl.recipes.dreamgym.predicting import said
from crl.recipes.dreamgym.prompts import step_of
from crl.recipes.dreamgym.rows import REAL, Annotation, PoolItem
from crl.recipes.dreamgym.store import POOL, items_of, newest, transitions_of
from crl.records import Generation
from crl.rounds.context import StageContext
from crl.rounds.weights import weights_of
from crl.run.seeds import number_of
from crl.text.outputs import messages_of, prepared, room_for_prompt, sample_outputs, token_record

ANNOTATE_STAGE = "annotate"


def annotate(ctx: StageContext) -> None:
    """One output per transition of the fit that has none yet."""
    config, role = config_of(ctx.method), ctx.method.role(TEACHER)
    items = newest(items_of(ctx.table(PoolItem, POOL), [REAL]), config.fit.most)
    known = {row.transition_id for row in annotations_of(ctx, items, before=ctx.round)}
    rows = transitions_of(ctx, [item for item in items if item.transition_id not in known])
    weights = weights_of(ctx, TEACHER)
    policy = ctx.services.policy(TEACHER, weights)
    room, asked = room_for_prompt(policy, role), []
    for row in rows:
        prompt = ctx.method.prompts_of(row.family)[ANNOTATE]
        outcome = predicted_part(step_of(row), row.actions)
        values = {"goal": row.goal, "observation": row.observation, "action": row.action, "outcome": outcome}
        name = f"a-{row.transition_id}"
        asked.append(prepared(policy, name, messages_of(prompt, values), room, seed=number_of(ctx.seed(name))))
    outputs = sample_outputs(policy, asked, role.sampling, batch=config.predict.batch)
    found: list[Annotation] = []
    records: list[Generation] = []
    for row, output in zip(rows, outputs, strict=True):
        reason_code, text = said(output)
        line = one_line(text or "")
        if reason_code == OK and not line:
            reason_code = "empty_text"
        record = token_record(
            output, generation_id=f"g-{output.prompt.name}", round=ctx.round, stage=ctx.stage.name, role=TEACHER,
            kind=ANNOTATE, weights_digest=weights.weights_digest, temperature=role.sampling.temperature,
        )  # fmt: skip
        records.append(record)
        found.append(
            Annotation(
                transition_id=row.transition_id, round=ctx.round, reason_code=reason_code,
                text=line if reason_code == OK else None, generation_id=record.generation_id,
            )
        )  # fmt: skip
    ctx.write(Annotation, found)
    ctx.write(Generation, records)


def annotations_of(ctx: StageContext, items: Sequence[PoolItem], *, before: int) -> list[Annotation]:
    """What a teacher said of items of the pool in the rounds before one, where it was asked."""
    wanted = {item.transition_id for item in items}
    first = min((item.entered for item in items), default=before)
    rounds = range(first, before)
    asked = [each for each in rounds if ctx.recipe.resolve(ctx.method, each, ANNOTATE_STAGE, 0) is not None]
    rows = [row for number in asked for row in ctx.rows_at(Annotation, number, ANNOTATE_STAGE)]
    return [row for row in rows if row.transition_id in wanted]
