"""Stage `annotate`: a teacher says why real transitions are as they are; the experience model learns to say it first.

At a fit those are asked about that came into the real pool since the fit before, as far as the fit learns them.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.recipes.context import StageContext
from crl.recipes.dreamgym.config import ANNOTATE, TEACHER, DreamGymConfig, config_of
from crl.recipes.dreamgym.form import OK, one_line, predicted_part
from crl.recipes.dreamgym.predicting import said
from crl.recipes.dreamgym.prompts import step_of
from crl.recipes.dreamgym.rows import REAL, Annotation, PoolItem
from crl.recipes.dreamgym.store import POOL, items_of, transitions_of
from crl.recipes.weights import weights_of
from crl.records import Generation
from crl.run.seeds import number_of
from crl.text.outputs import prepared, room_for_prompt, sample_outputs, token_record
from crl.text.templates import messages_of

ANNOTATE_STAGE = "annotate"


def fit_of(config: DreamGymConfig, entered: int) -> int:
    """The round of the first fit that a transition can be in, which came into the pool in the round `entered`."""
    found = entered
    while not config.fits(found):
        found += 1
    return found


def annotate(ctx: StageContext) -> None:
    """One output per transition that is new to the fit."""
    config, role = config_of(ctx.method), ctx.method.role(TEACHER)
    items = items_of(ctx.table(PoolItem, POOL), [REAL])[-config.fit.most :]
    rows = transitions_of(ctx, [item for item in items if fit_of(config, item.entered) == ctx.round])
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


def annotations_of(ctx: StageContext, items: Sequence[PoolItem]) -> list[Annotation]:
    """What a teacher said of items of the pool, in the fits that each was first in."""
    config = config_of(ctx.method)
    wanted = {item.transition_id for item in items}
    rounds = sorted({fit_of(config, item.entered) for item in items})
    rows = [row for number in rounds for row in ctx.rows_at(Annotation, number, ANNOTATE_STAGE)]
    return [row for row in rows if row.transition_id in wanted]
