"""What a run does once it has collapsed (`method.on_collapse`): rows say it, and stages go by them.

The stage `health` carries on which round did best on held-out seeds. In the round in which it finds a collapse it names
that round in `fall_back_to`. The updates of the next round (of the one after that where rounds overlap) read it: they
write the weights row of that round again and train nothing. So a fall back is a row like that of a round without an
update, which verification, forks and exports know; no file changes. Rounds with a sign are then counted anew.

A collapse without such a round stops the run (`guards.py`): nothing is better than the present weights, or nothing has
been better since the run fell back before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from crl.config import Method
from crl.errors import BadInput, RecordDamaged
from crl.records import BufferItem, Evaluation, Weights
from crl.rounds.alarms import Guard, Metrics, counters
from crl.rounds.context import StageContext
from crl.rounds.evaluate import best_of, held_out_success
from crl.rounds.stage import BEFORE, Read, Recipe, Run, Stage

HEALTH, EVALUATE = "health", "evaluate"
FALL_BACK, FELL_BACK = "fall_back_to", "fell_back_to"
"""Metrics: the round whose weights the run goes on with, and the last one that it did go on with."""
_BEST, _BEST_ROUND, _FELL_BACK_BEST = "best_held_out", "best_held_out_round", "fell_back_held_out"
_DECIDED, _HELD_OUT, _HELD_OUT_BEFORE = "decided", "held_out", "held_out_before"


def guarded(recipe: Recipe, method: Method) -> Recipe:
    """The recipe whose `health` watches for a collapse, and whose updates fall back where the method asks for it."""
    if method.on_collapse == "go_on":
        return recipe
    if all(stage.name != HEALTH for stage in recipe.stages):
        raise BadInput(
            f"recipe {recipe.name} does not look for a collapse",
            expected="a recipe whose rounds have a stage `health`, or go_on",
            where="method.on_collapse",
            next_step="leave it out",
        )
    if method.on_collapse == "fall_back" and method.evaluation.every == 0:
        raise BadInput(
            "a run that collapsed is to fall back to its best evaluated round, and no round is evaluated",
            expected="evaluation.every above 0, or on_collapse: stop",
            where="method.on_collapse",
            next_step="change one of the two",
        )
    evaluated = (Read(EVALUATE, -1, _HELD_OUT_BEFORE), Read(EVALUATE, 0, _HELD_OUT))
    decided = Read(HEALTH, -2 if method.overlap else -1, _DECIDED)

    def watched(stage: Stage) -> Stage:
        if stage.name == HEALTH:
            return replace(stage, reads=(*stage.reads, *evaluated))
        if method.on_collapse != "fall_back":
            return stage
        if Weights in stage.writes and stage.run is not None:
            return replace(stage, run=partial(_update, run=stage.run), reads=(*stage.reads, decided))
        # What no update will train is not taken out of a buffer either.
        return replace(stage, reads=(*stage.reads, decided)) if BufferItem in stage.writes else stage

    return replace(recipe, stages=tuple(map(watched, recipe.stages)), recalls=(*recipe.recalls, Weights))


def falls_back(ctx: StageContext) -> bool:
    """Whether the updates of the round go on with earlier weights and train nothing, as its stages that choose what is
    trained can know."""
    return ctx.method.on_collapse == "fall_back" and FALL_BACK in ctx.metrics(_DECIDED)


def counted_anew(previous: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics of the round before, without what was counted in it where it fell back."""
    return {name: value for name, value in previous.items() if FALL_BACK not in previous or name not in counters()}


def guard_of(ctx: StageContext, previous: Mapping[str, float]) -> Guard | None:
    """What `health` adds, from its metrics of the round before; None where the method goes on whatever happens."""
    if ctx.method.on_collapse == "go_on":
        return None
    known = {int(previous[_BEST_ROUND]): previous[_BEST]} if _BEST in previous else {}
    for name, number in ((_HELD_OUT_BEFORE, ctx.round - 1), (_HELD_OUT, ctx.round)):
        success = held_out_success(ctx.method, ctx.rows(Evaluation, name))
        if success is not None:
            known[number] = success
    best = best_of(known)
    carried: Metrics = {} if best is None else {_BEST: known[best], _BEST_ROUND: float(best)}
    carried |= {name: previous[name] for name in (FELL_BACK, _FELL_BACK_BEST) if name in previous}
    better = best is not None and best != ctx.round and known[best] > previous.get(_FELL_BACK_BEST, -1.0)

    def guard(collapsed: bool) -> tuple[Metrics, dict[str, str]]:
        if not (collapsed and better and ctx.method.on_collapse == "fall_back"):
            return carried, {}
        number, success = carried[_BEST_ROUND], carried[_BEST]
        told = f"the run goes on with the weights of round {number:.0f}, whose held-out success was {success:.3f}"
        return {**carried, FALL_BACK: number, FELL_BACK: number, _FELL_BACK_BEST: success}, {FALL_BACK: told}

    return guard


def _update(ctx: StageContext, run: Run) -> None:
    """Update a set of weights, or go on with those of the round that the run falls back to."""
    target = ctx.metrics(_DECIDED).get(FALL_BACK)
    if target is None:
        run(ctx)
        return
    place = ctx.recipe.resolve(ctx.method, int(target), ctx.stage.name, 0)
    rows = [] if place is None else ctx.rows_at(Weights, *place)
    row = next((row for row in rows if row.role == ctx.stage.role), None)
    if row is None or (row.checkpoint is not None and not (ctx.run_path / row.checkpoint).is_dir()):
        raise RecordDamaged(
            f"the weights of round {target:.0f} that the run falls back to are gone",
            expected="the checkpoint of the best evaluated round, which retention keeps",
            where=str(ctx.run_path if row is None else ctx.run_path / str(row.checkpoint)),
            next_step="fork at a round whose checkpoint is there: crl fork",
        )
    if ctx.services.rank > 0:
        return
    ctx.write(Weights, [replace(row, round=ctx.round)])
    told = f"the run had collapsed: no update, these are the weights of round {target:.0f}"
    factors = {name: value for name, value in ctx.metrics(BEFORE).items() if name.endswith("_factor")}
    ctx.write_metrics({"samples": 0.0, **factors, FELL_BACK: target}, {FELL_BACK: told})
