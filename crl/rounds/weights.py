"""Which weights a role has: read, carried over, identified by what they are made of; and the stages `update_<role>`.

There is one such stage per set of weights: optimizer steps on the batches that credit chose, in their order, each
whole or in mini-batches.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence, Set
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from crl.errors import RecordDamaged
from crl.learn.terms import Objective, gradient_shares, share_factors
from crl.paths import quoted
from crl.records import Generation, Metric, Sample, Weights
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE, Read, Stage
from crl.run.files import sha256_once
from crl.text.outputs import Output, token_record

CHECKPOINT = "checkpoint"
"""Directory of the weights inside the stage that wrote them."""
_SUMMED = frozenset({"samples", "samples_without_gradient", "stepped", "tokens"})
"""Metrics of an optimizer step that count something; so do the `<objective>_tokens`."""
_OF_SAMPLES = _SUMMED - {"stepped"}
"""Metrics of an optimizer step that count its samples; so do the `<objective>_tokens`."""
_UNMOVED = ("logprob_mismatch", "mismatch_kl")
"""Metrics that compare the trainer with the sampler, which a step makes differ."""


def weights_of(ctx: StageContext, role: str, *, read: str | None = None) -> Weights:
    """The weights row of a role, from the declared read of its name (or of another: `read`)."""
    owner = ctx.method.owner(role)
    for row in ctx.rows(Weights, read or role):
        if row.role == owner:
            return row
    raise RecordDamaged(
        f"no weights of role {owner} in what stage {ctx.stage.name} of round {ctx.round} reads as {read or role}",
        expected="one row of table weights",
        where=str(ctx.run_path),
        next_step=f"run `crl verify {quoted(ctx.run_path)}`",
    )


def recorded(ctx: StageContext, output: Output, role: str, kind: str, weights: Weights) -> Generation:
    """The token record of an output that a role wrote in this stage, with these weights."""
    return token_record(
        output,
        generation_id=f"g-{output.prompt.name}",
        round=ctx.round,
        stage=ctx.stage.name,
        role=role,
        kind=kind,
        weights_digest=weights.weights_digest,
        temperature=ctx.method.role(role).sampling.temperature,
    )


def identify(base_digest: str, checkpoint: Path) -> str:
    """SHA-256 over the base model's digest and the sampling weights of a checkpoint.

    Only what samples counts, as it was written with the weights: it is taken before tokenizer and generation config are
    added. Optimizer state in subdirectories is digested by the manifest.
    """
    digest = hashlib.sha256(base_digest.encode())
    for path in sorted(path for path in checkpoint.iterdir() if path.is_file()):
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(sha256_once(path)))
    return digest.hexdigest()


def new_weights(ctx: StageContext, before: Weights, *, updates: int) -> Weights:
    """The row for the checkpoint that a stage just wrote into its directory, after adding what one opens it with."""
    from crl.policies.companions import add_companions, name_base

    relative = f"rounds/{ctx.round:04d}/{ctx.stage.name}/{CHECKPOINT}"
    checkpoint, base = ctx.directory / CHECKPOINT, ctx.services.model_path(before.role)
    name_base(checkpoint, before.source, base, before.base_digest)
    weights_digest = identify(before.base_digest, checkpoint)
    add_companions(
        checkpoint,
        base,
        before.base_digest,
        ctx.method.role(before.role),
        others=sorted((ctx.run_path / "rounds").glob(f"[0-9]*/[a-z]*/{CHECKPOINT}"), reverse=True),
    )
    return Weights(
        role=before.role,
        round=ctx.round,
        updates=updates,
        source=before.source,
        base_digest=before.base_digest,
        checkpoint=relative,
        weights_digest=weights_digest,
    )


def update_stage(owner: str, credit: str = "credit") -> Stage:
    """The update stage of a set of weights. It runs on every rank; only rank 0 writes rows.

    `credit` is the stage that makes the samples.
    """
    name = update_name(owner)
    return Stage(
        name=name,
        run=partial(update, owner=owner, credit=credit),
        reads=(Read(credit), Read(name, -1, BEFORE)),
        writes=(Weights, Metric),
        role=owner,
        update=True,
    )


def update_name(owner: str) -> str:
    """Name of the stage that updates a set of weights."""
    return f"update_{owner}"


def update(ctx: StageContext, owner: str, credit: str) -> None:
    """Train on this round's samples of every role that has these weights: each step on one batch, all objectives mixed.

    Without any (warm-up, buffer not full), or where every advantage is 0 so that nothing would move, the weights stay:
    the row of the round before is carried on and no checkpoint is written.
    """
    samples = [sample for sample in ctx.rows(Sample, credit) if ctx.method.owner(sample.role) == owner]
    before = weights_of(ctx, owner, read=BEFORE)
    after = dataclasses.replace(before, round=ctx.round)
    metrics = {"samples": 0.0}
    trained = {sample.objective for sample in samples}
    shares, earlier = _shares(ctx, trained)
    norms: Mapping[str, float] = {}
    factors = share_factors(norms, shares, earlier)
    if samples:
        ctx.progress(0, len(samples))
        trainer = ctx.services.trainer(owner, before)
        in_order = sorted(samples, key=lambda sample: sample.step)
        optimizer, stale = ctx.method.role(owner).optimizer, stale_samples(ctx, owner, samples)
        batches = [
            part
            for step, batch in groupby(in_order, key=lambda sample: sample.step)
            for part in mini_batches(
                list(batch), optimizer.num_mini_batches, ctx.recipe.objectives, ctx.seed("mini_batches", step)
            )
        ]
        iterations = optimizer.num_iterations
        steps: list[dict[str, float]] = []
        proximal: dict[str, Any] = {}
        if len(batches) * iterations > 1:
            for batch in batches:
                proximal |= trainer.proximal(batch, ctx.recipe.objectives)
        read: dict[str, Any] = {"stale": stale, "proximal": proximal}

        def weigh(found: Mapping[str, float]) -> dict[str, float]:
            nonlocal factors, norms
            norms, factors = found, share_factors(found, shares, earlier)
            return factors

        measures = bool(trained & shares.keys())
        for batch in batches * iterations:
            by = weigh if measures and not steps else factors
            steps.append(trainer.update(batch, ctx.recipe.objectives, factors=by, **read))
            ctx.progress(int(sum(step["samples"] for step in steps)) // iterations, len(samples))
        metrics = over_passes(steps, len(batches))
        if metrics["stepped"]:
            trainer.save(ctx.directory / CHECKPOINT)
    metrics |= {f"{name}_factor": factor for name, factor in factors.items()}
    metrics |= {f"{name}_share": share for name, share in gradient_shares(norms, factors).items()}
    if ctx.services.rank > 0:
        if samples:
            ctx.services.trained(owner, before)  # the row that rank 0 makes
        return
    if metrics.get("stepped"):
        after = new_weights(ctx, before, updates=before.updates + int(metrics["stepped"]))
    ctx.write(Weights, [after])
    alarms = {}
    if not metrics.get("stepped", 1.0):
        alarms["stepped"] = "no update: all rewards of each baseline were equal, so every advantage is 0"
    if metrics.get("learning_rate") == 0:
        alarms["learning_rate"] = "no weight moves any more: lr_scheduler_steps of the optimizer are over"
    ctx.write_metrics(dict(sorted(metrics.items())), alarms)
    if samples:
        ctx.services.trained(owner, after)


def _shares(ctx: StageContext, trained: Set[str]) -> tuple[dict[str, float], dict[str, float]]:
    """The share of the gradient that objectives are to have, by name, and what multiplied each in the round before, as
    that round recorded it: of those that are trained now or were multiplied before."""
    wanted = {name: each.share for name, each in ctx.recipe.objectives.items() if each.share is not None}
    recorded = ctx.metrics(BEFORE) if wanted else {}
    earlier = {name: recorded[f"{name}_factor"] for name in wanted if f"{name}_factor" in recorded}
    return {name: share for name, share in wanted.items() if name in trained or name in earlier}, earlier


def mini_batches(
    batch: Sequence[Sample], count: int, objectives: Mapping[str, Objective], seed: np.random.SeedSequence
) -> list[list[Sample]]:
    """A batch dealt into so many of about the same size, at random; in their order in each.

    What teaches nothing is dealt for itself, and so is every objective: each mini-batch has its share of all. Of what
    there is less than there are mini-batches, the first has some: shares of the gradient are measured on it. Where
    weights are parts of a whole, samples weigh as many times as much as there are mini-batches: the gradient of each
    is on average the batch's.
    """
    from crl.learn.batches import has_gradient

    parts = min(count, len(batch))
    if parts == 1:
        return [list(batch)]
    shuffled = np.random.default_rng(seed).permutation(len(batch)).tolist()
    dealt = sorted(shuffled, key=lambda place: (batch[place].objective, not has_gradient(batch[place])))
    heavier = [
        each if objectives[each.objective].divides else dataclasses.replace(each, weight=each.weight * parts)
        for each in batch
    ]
    found = [[heavier[place] for place in sorted(dealt[part::parts])] for part in range(parts)]
    return sorted(found, key=lambda part: -len({each.objective for each in part if has_gradient(each)}))


def stale_samples(ctx: StageContext, owner: str, samples: Sequence[Sample]) -> frozenset[str]:
    """Ids of samples of the round that older weights wrote than the update begins with, by what stages declare to read.

    Where rounds overlap, answers to questions are such: playing reads the extractor of two rounds before.
    """
    begins = ctx.recipe.resolve(ctx.method, ctx.round, update_name(owner), -1)
    stages = {stage.name: stage for stage in ctx.recipe.stages_of(ctx.method, ctx.round)}

    @cache
    def older(source: str, role: str) -> bool:
        number, _, stage = source.partition("/")
        if int(number) != ctx.round or stage not in stages:
            return False
        reads = {read.name: read for read in stages[stage].reads}
        read = reads.get(role)
        return read is not None and ctx.recipe.resolve(ctx.method, ctx.round, read.stage, read.offset) != begins

    return frozenset(sample.sample_id for sample in samples if older(sample.source, sample.role))


def over_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a round's optimizer steps as one: counts are summed, `ratio_max` is the largest, the others are means
    over the steps that have them. `stepped` is the number of steps that were taken."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        combined = max(values) if name == "ratio_max" else sum(values)
        counts = name in _SUMMED or name.endswith("_tokens")
        found[name] = combined if counts or name == "ratio_max" else combined / len(values)
    return found


def over_passes(steps: Sequence[Mapping[str, float]], batches: int) -> dict[str, float]:
    """Metrics of several passes over as many batches. Samples and tokens are counted once; how trainer and sampler
    agree is said by the first step, before anything moved; the rest is over all steps."""
    once, everything = over_steps(steps[:batches]), over_steps(steps)
    counted = {name: value for name, value in once.items() if name in _OF_SAMPLES or name.endswith("_tokens")}
    first: Mapping[str, float] = next((step for step in steps if step["stepped"]), {})
    unmoved = {name: first[name] for name in _UNMOVED if name in first}
    return {name: value for name, value in everything.items() if name not in _UNMOVED} | counted | unmoved


def base_weights(ctx: StageContext) -> list[Weights]:
    """A row per set of weights, the base model as it is, and one of the embedder where the recipe has one. A model of
    the Hub is named with its commit: the run goes on with it, whatever the branch becomes."""
    from crl.policies.hub import HUB_ID
    from crl.policies.sources import pinned

    sources = {owner: ctx.method.role(owner).model for owner in ctx.method.owners()}
    embedder = ctx.method.recipe.embedder()
    if embedder is not None:
        sources["embedder"] = embedder.name
    rows = []
    for role, source in sources.items():
        base_digest = ctx.services.model_digest(role)
        if HUB_ID.fullmatch(source) and role != "embedder":
            source = pinned(source, ctx.services.model_path(role))
        rows.append(
            Weights(
                role=role,
                round=0,
                updates=0,
                source=source,
                base_digest=base_digest,
                checkpoint=None,
                weights_digest=hashlib.sha256(base_digest.encode()).hexdigest(),
            )
        )
    return rows
