"""Stages `behavior_logprobs_<role>`: log-probabilities of what a server sampled from a part of its distribution.

Ratios are taken against the log-probability that a token had when it was sampled, under the temperature-scaled
distribution before any cut (top_p, top_k, min_p). Such a server tells another one: that of what its cut left. So the
trainer reads the sequences once, in the round that sampled them and with the weights that sampled them, and the values
are rows. Updates go by these rows in whatever round they train a sequence, and compute none themselves.

Where the method cuts nothing on such an engine there is no such stage. Each is on the track of what it reads; there is
one per set of weights, or several where roles of one set sample with weights of different rounds. Sequences that
nothing trains (`Stage.untrained`) are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress

from crl.config import Method
from crl.credit.samples import sample_of
from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.protocols import Reading
from crl.records import SAMPLER, SERVER, BehaviorLogprobs, Generation, Metric, Sample, TeacherLogprobs, Weights
from crl.rounds.context import StageContext
from crl.rounds.stage import Read, Recipe, Stage, draw_of
from crl.rounds.weights import weights_of

BEHAVIOR = "behavior_logprobs"
_COMPARED_BY = (Sample, TeacherLogprobs)
"""Rows whose makers compare with behavior log-probabilities."""


def with_behavior(recipe: Recipe, method: Method) -> Recipe:
    """The recipe with these stages, each before the first one that reads it: whatever makes samples of what they
    read."""
    roles = method.renormalized()
    if not roles:
        return recipe
    makers = {stage.name: _beside(stage) for stage in recipe.stages if {*_COMPARED_BY} & {*stage.writes}}
    read = frozenset[str]().union(*makers.values())
    sampled: dict[tuple[str, str, int, bool], list[tuple[Stage, str]]] = {}
    for stage in recipe.stages:
        if Generation in stage.writes and not stage.untrained and stage.name in read and draw_of(stage.name)[1] == 1:
            for weights in stage.reads:
                if weights.name in roles:
                    key = (method.owner(weights.name), weights.stage, weights.offset, stage.second_track)
                    sampled.setdefault(key, []).append((stage, weights.name))
    owners = [owner for owner, *_ in sampled]
    made = {
        key: _stage(f"{BEHAVIOR}_{key[0]}" + (f"_{of[0][0].name}" if owners.count(key[0]) > 1 else ""), key, of)
        for key, of in sampled.items()
    }
    listed: dict[str, Stage] = {}
    for stage in recipe.stages:
        before = [each for each in made.values() if _beside(each) & makers.get(stage.name, frozenset())]
        listed |= {each.name: each for each in before}
        listed[stage.name] = replace(stage, reads=(*stage.reads, *(Read(each.name) for each in before)))
    return replace(recipe, stages=tuple(listed.values()))


def _beside(stage: Stage) -> frozenset[str]:
    """What a stage reads of its own round."""
    return frozenset(read.stage for read in stage.reads if read.offset == 0)


def _stage(name: str, key: tuple[str, str, int, bool], of: Sequence[tuple[Stage, str]]) -> Stage:
    owner, written_by, offset, second_track = key
    stages, roles = {stage.name: stage for stage, _ in of}, tuple(dict.fromkeys(role for _, role in of))
    return Stage(
        name=name,
        run=partial(behavior_logprobs, stages=tuple(stages), roles=roles),
        reads=(*map(Read, stages), Read(written_by, offset, roles[0])),
        writes=(BehaviorLogprobs, Metric),
        role=owner,
        update=True,
        second_track=second_track,
        due=lambda method, number: any(stage.due(method, number) for stage in stages.values()),
    )


def behavior_logprobs(ctx: StageContext, stages: Sequence[str], roles: Sequence[str]) -> None:
    """Write the log-probabilities of what these roles sampled in these stages of the round. It runs on every rank; only
    rank 0 writes rows."""
    weights, owner = weights_of(ctx, roles[0]), ctx.method.owner(roles[0])
    sampled = [row for name in stages for row in ctx.rows(Generation, name)]
    records = [row for row in sampled if row.logprobs_by == SERVER and row.role in roles and row.token_ids]
    for row in records:
        _check_weights(ctx, row, weights)
    samples = {row.generation_id: as_read(row, round=ctx.round) for row in records if any(row.loss_mask)}
    found: dict[str, Reading] = {}
    if samples:
        ctx.progress(0, len(samples))
        found = ctx.services.trainer(owner, weights).read(list(samples.values()))
        ctx.services.trained(owner, weights)
    if ctx.services.rank > 0:
        return
    rows, cut = [], []
    for row in records:
        values = found[samples[row.generation_id].sample_id].logprobs if row.generation_id in samples else []
        cut += [told - own for told, own in zip(compress(row.logprobs, row.loss_mask), values, strict=True)]
        each = iter(values)
        logprobs = [next(each) if mask else 0.0 for mask in row.loss_mask]
        rows.append(
            BehaviorLogprobs(generation_id=row.generation_id, weights_digest=weights.weights_digest, logprobs=logprobs)
        )
    ctx.write(BehaviorLogprobs, rows)
    metrics = {"sequences": float(len(rows)), "tokens": float(len(cut))}
    ctx.write_metrics({**metrics, "cut_nats": sum(cut) / len(cut)} if cut else metrics)


def as_read(record: Generation, *, round: int) -> Sample:
    """A token record for one pass over it: what it brings as log-probabilities is not used."""
    read = replace(record, logprobs=[0.0] * len(record.token_ids), logprobs_by=SAMPLER)
    return sample_of(read, round=round, role=record.role, objective="nll", reward=0.0, advantage=1.0, weight=1.0)


def _check_weights(ctx: StageContext, row: Generation, weights: Weights) -> None:
    if row.weights_digest != weights.weights_digest:
        raise RecordDamaged(
            f"{row.generation_id} was sampled with the weights {row.weights_digest[:12]}",
            expected=f"{weights.weights_digest[:12]}, those that stage {ctx.stage.name} of round {ctx.round} reads",
            where=str(ctx.run_path),
            next_step=f"run `crl verify {quoted(ctx.run_path)}`",
        )
