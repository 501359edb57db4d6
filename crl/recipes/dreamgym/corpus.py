"""Stage `corpus`: the samples of a fit. Next-token loss on the reasoning and on what is predicted after it. Before it,
stage `annotate`: a teacher says why real transitions are as they are; the experience model learns to say it first.

Of a transition with prompt x, reasoning R and next observation and outcome s' the loss is
−log P(R | x) − log P(s' | x, R): one sequence, in which every token of the output is trained and none of the prompt.
A prompt shows similar transitions as a prediction will be shown them: none of its own episode, whose next step begins
with the answer.

A teacher is asked about the transitions of a fit that nobody was asked about yet: what came into the real pool since
the fit before, and in a fork what came in while there was no teacher.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from crl.config import Method
from crl.credit.samples import sample_of
from crl.protocols import Chat
from crl.recipes.dreamgym.config import ANNOTATE, EXPERIENCE, PREDICT, TEACHER, config_of
from crl.recipes.dreamgym.form import OK, one_line, predicted_part
from crl.recipes.dreamgym.predicting import text_or_reason
from crl.recipes.dreamgym.prompts import answer_of, fitted, situation_of, step_of
from crl.recipes.dreamgym.rows import REAL, Annotation, PoolItem, Transition
from crl.recipes.dreamgym.store import POOL, Store, items_of, newest, transitions_of
from crl.records import Generation, Sample
from crl.rounds.context import StageContext
from crl.rounds.weights import recorded, weights_of
from crl.run.seeds import number_of
from crl.text.outputs import messages_of, prepared, prompt_text, room_for_prompt, sample_outputs

CORPUS = "corpus"
TRANSITIONS, TOO_LONG = "transitions", "transitions_too_long"
"""Metrics of a fit: how many it was given, and how many of them it could not learn."""
ANNOTATE_STAGE = "annotate"


def due(method: Method, round_number: int) -> bool:
    """With every fit."""
    return config_of(method).fits(round_number)


def corpus(ctx: StageContext) -> None:
    """The newest transitions of the real pool, of every task family, over and over, in batches."""
    config, role = config_of(ctx.method).fit, ctx.method.role(EXPERIENCE)
    items = newest(items_of(ctx.table(PoolItem, POOL), [REAL]), config.max_transitions)
    rows = transitions_of(ctx, items)
    neighbors = _neighbors(ctx, rows)
    weights = weights_of(ctx, EXPERIENCE)
    chat = ctx.services.policy(EXPERIENCE, weights).chat
    taught = {row.transition_id: row.text for row in _annotations(ctx, items)}
    records = []
    for row in rows:
        text = answer_of(row, reasoning_of(row, config.reasoning, taught))
        record = demonstrated(chat, ctx.method, row, neighbors[row.transition_id], text, role.context)
        if record is not None:
            name = f"r{ctx.round:04d}-{record.generation_id}"
            records.append(
                dataclasses.replace(record, generation_id=name, round=ctx.round, weights_digest=weights.weights_digest)
            )
    samples = batches(
        records, config.num_train_epochs, config.batch, round=ctx.round, seed=number_of(ctx.seed("order"))
    )
    ctx.write(Generation, records)
    ctx.write(Sample, samples)
    metrics = {TRANSITIONS: len(rows), TOO_LONG: len(rows) - len(records)}
    explained = sum(bool(reasoning_of(row, config.reasoning, taught)) for row in rows)
    metrics["transitions_explained"] = explained
    told = "no transition fits the context of the role experience" if rows and not records else None
    ctx.write_metrics(metrics, {TOO_LONG: told})


def reasoning_of(row: Transition, source: str, taught: Mapping[str, str | None]) -> str | None:
    """What is learned as the reason of a transition; None: nobody says."""
    if source == "environment":
        return row.reasoning
    return taught.get(row.transition_id) if source == "teacher" else None


def demonstrated(
    chat: Chat, method: Method, row: Transition, neighbors: list[Transition], text: str, context: int
) -> Generation | None:
    """The token record of an output that says `text` about a transition, in a prompt with as many neighbors as fit, the
    nearest ones; None where it does not fit the context."""
    answer = list(chat.answer(text))
    room = context - len(answer)
    messages, prompt, _ = fitted(chat, method.prompts_of(row.family)[PREDICT], situation_of(row), neighbors, room)
    if len(prompt) > room:
        return None
    return Generation(
        generation_id=f"fit-{row.transition_id}",
        round=row.round,
        stage=CORPUS,
        role=EXPERIENCE,
        kind="fit",
        weights_digest="",
        temperature=1.0,
        token_ids=prompt + answer,
        loss_mask=[0] * len(prompt) + [1] * len(answer),
        # Nothing was sampled: what is learned was written about a real transition.
        logprobs=[0.0] * (len(prompt) + len(answer)),
        prompt=prompt_text(messages),
        output=text,
        stop_reason="end_of_turn",
    )


def batches(records: Sequence[Generation], epochs: int, batch: int, *, round: int, seed: int) -> list[Sample]:
    """One sample per record and epoch, every epoch in an order of its own; consecutive ones are one optimizer step.

    The update takes the mean over the trained tokens of a step, so the weight of a sample is 1.
    """
    generator = np.random.default_rng(seed)
    samples: list[Sample] = []
    for epoch in range(epochs):
        steps = len({sample.step for sample in samples})
        for place, index in enumerate(generator.permutation(len(records))):
            record = records[int(index)]
            sample = sample_of(
                record, round=round, role=EXPERIENCE, objective="nll", reward=0.0, advantage=1.0, weight=1.0,
                step=steps + place // batch,
            )  # fmt: skip
            samples.append(dataclasses.replace(sample, sample_id=f"{sample.sample_id}-e{epoch}"))
    return samples


def _neighbors(ctx: StageContext, rows: Sequence[Transition]) -> dict[str, list[Transition]]:
    """What each transition is shown: the nearest of the store that are of other episodes."""
    store = Store(ctx, config_of(ctx.method).store)
    found: dict[str, list[Transition]] = {}
    for family in dict.fromkeys(row.family for row in rows):
        own = [row for row in rows if row.family == family]
        near = store.nearest(family, [situation_of(row) for row in own], [row.episode_id for row in own])
        found |= {row.transition_id: each for row, each in zip(own, near, strict=True)}
    return found


def _annotations(ctx: StageContext, items: Sequence[PoolItem]) -> list[Annotation]:
    if config_of(ctx.method).fit.reasoning != "teacher":
        return []
    return annotations_of(ctx, items, before=ctx.round + 1)


def annotate(ctx: StageContext) -> None:
    """One output per transition of the fit that has none yet."""
    config, role = config_of(ctx.method), ctx.method.role(TEACHER)
    items = newest(items_of(ctx.table(PoolItem, POOL), [REAL]), config.fit.max_transitions)
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
        reason_code, text = text_or_reason(output)
        line = one_line(text or "")
        if reason_code == OK and not line:
            reason_code = "empty_text"
        record = recorded(ctx, output, TEACHER, ANNOTATE, weights)
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
