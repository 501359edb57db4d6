"""Stage `corpus`: the samples of a fit. Next-token loss on the reasoning and on what is predicted after it.

Of a transition with prompt x, reasoning R and next observation and outcome s' the loss is
−log P(R | x) − log P(s' | x, R): one sequence, in which every token of the output is trained and none of the prompt.
A prompt shows similar transitions as a prediction will be shown them: none of its own episode, whose next step begins
with the answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from crl.config import Method
from crl.protocols import Chat
from crl.recipes.dreamgym.config import EXPERIENCE, PREDICT, config_of
from crl.recipes.dreamgym.prompts import answer_of, predict_messages, situation_of
from crl.recipes.dreamgym.rows import REAL, Annotation, PoolItem, Transition
from crl.recipes.dreamgym.store import POOL, Store, items_of, newest, transitions_of
from crl.records import Generation, Metric, Sample
from crl.rounds.context import StageContext
from crl.rounds.weights import weights_of
from crl.run.seeds import number_of
from crl.text.outputs import Messages, prompt_text

CORPUS = "corpus"
TRANSITIONS, TOO_LONG = "transitions", "transitions_too_long"
"""Figures of a fit: how many it was given, and how many of them it could not learn."""


def due(method: Method, round_number: int) -> bool:
    """With every fit."""
    return config_of(method).fits(round_number)


def corpus(ctx: StageContext) -> None:
    """The newest transitions of the real pool, of every task family, over and over, in batches."""
    config, role = config_of(ctx.method).fit, ctx.method.role(EXPERIENCE)
    items = newest(items_of(ctx.table(PoolItem, POOL), [REAL]), config.most)
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
    samples = batches(records, config.epochs, config.batch, round=ctx.round, seed=number_of(ctx.seed("order")))
    ctx.write(Generation, records)
    ctx.write(Sample, samples)
    figures = {TRANSITIONS: len(rows), TOO_LONG: len(rows) - len(records)}
    explained = sum(bool(reasoning_of(row, config.reasoning, taught)) for row in rows)
    figures["transitions_explained"] = explained
    told = "no transition fits the context of the role experience" if rows and not records else None
    ctx.write(
        Metric,
        [
            Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=float(value),
                   alarm=told if name == TOO_LONG else None)
            for name, value in figures.items()
        ],
    )  # fmt: skip


def reasoning_of(row: Transition, source: str, taught: Mapping[str, str | None]) -> str | None:
    """What is learned as the reason of a transition; None: nobody says."""
    if source == "environment":
        return row.reasoning
    return taught.get(row.transition_id) if source == "teacher" else None


def demonstrated(
    chat: Chat, method: Method, row: Transition, neighbors: Sequence[Transition], text: str, context: int
) -> Generation | None:
    """The token record of an output that says `text` about a transition, in a prompt with as many neighbors as fit, the
    nearest ones; None where it does not fit the context."""
    template = method.prompts_of(row.family)[PREDICT]
    answer = chat.answer(text)
    for shown in range(len(neighbors), -1, -1):
        messages = predict_messages(template, situation_of(row), neighbors[:shown])
        prompt = list(chat.opening(messages))
        if len(prompt) + len(answer) <= context:
            return _record(row, messages, prompt, list(answer), text)
    return None


def _record(row: Transition, messages: Messages, prompt: list[int], answer: list[int], text: str) -> Generation:
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
            samples.append(
                Sample(
                    sample_id=f"r{round:04d}-{EXPERIENCE}-{record.generation_id}-e{epoch}",
                    round=round,
                    role=EXPERIENCE,
                    objective="nll",
                    source=f"{round:04d}/{CORPUS}",
                    generation_id=record.generation_id,
                    reward=0.0,
                    advantage=1.0,
                    weight=1.0,
                    temperature=record.temperature,
                    token_ids=record.token_ids,
                    loss_mask=record.loss_mask,
                    logprobs=record.logprobs,
                    step=steps + place // batch,
                )
            )
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
    from crl.recipes.dreamgym.annotate import annotations_of

    return annotations_of(ctx, items, before=ctx.round + 1)
