"""Stages `drift` and `validate`: the experience model held to real steps that no fit sees, before and after a fit.

`validate` asks the model as it now is. `drift` asks the model of the fit before, shown what the store had until this
round, about what was explored since: how well it still answers for the newer policy. Neither trains anything. What is
found below a floor is an alarm of the round, and stops the stage that plans synthetic tasks (:func:`require_truth`).
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.config import Method
from crl.errors import BadInput
from crl.recipes.dreamgym.config import config_of
from crl.recipes.dreamgym.corpus import CORPUS, TOO_LONG, TRANSITIONS
from crl.recipes.dreamgym.explore import EXPLORE, fitted_before
from crl.recipes.dreamgym.predicting import Asked, ExperienceModel, prediction_row
from crl.recipes.dreamgym.prompts import situation_of
from crl.recipes.dreamgym.rows import HELD_OUT, PoolItem, Prediction, Transition
from crl.recipes.dreamgym.store import POOL, Store, items_of, newest, seen, transitions_of
from crl.recipes.dreamgym.truth import alarms_of, truth_figures
from crl.records import Generation, Metric
from crl.rounds.context import StageContext
from crl.rounds.stage import maker_of

VALIDATE, DRIFT = "validate", "drift"


def due(method: Method, round_number: int) -> bool:
    """After every fit."""
    return config_of(method).fits(round_number)


def drift_due(method: Method, round_number: int) -> bool:
    """Before every fit but that of round 1. Whether a fork's first fit is one only the stage can tell."""
    return round_number > 1 and config_of(method).fits(round_number)


def held_out_rows(ctx: StageContext) -> list[Transition]:
    """The newest real transitions that no fit sees, of every task family."""
    items = items_of(ctx.table(PoolItem, POOL), [HELD_OUT])
    return transitions_of(ctx, newest(items, config_of(ctx.method).truth.most))


def validate(ctx: StageContext) -> None:
    """Predict them with the model as it now is; figures, and alarms where they are below the floor."""
    config = config_of(ctx.method).truth
    true = held_out_rows(ctx)
    rows, records = predicted(ctx, true, VALIDATE)
    figures = truth_figures(rows, true, config.gamma, seen(ctx, true))
    alarms = alarms_of(figures, config)
    ctx.write(Prediction, rows)
    ctx.write(Generation, records)
    ctx.write(Metric, [_metric(ctx, name, value, alarms.get(name)) for name, value in figures.items()])


def drift(ctx: StageContext) -> None:
    """Predict what was explored since the fit before with the model of that fit; nothing where there was none."""
    config = config_of(ctx.method).truth
    fitted = fitted_before(ctx.recipe, ctx.method, ctx.round)
    explored = ctx.rows(Transition, EXPLORE) if fitted else []
    true = newest([row for row in explored if row.split == HELD_OUT], config.most)
    rows, records = predicted(ctx, true, DRIFT)
    figures = truth_figures(rows, true, config.gamma, seen(ctx, true))
    ctx.write(Prediction, rows)
    ctx.write(Generation, records)
    ctx.write(Metric, [_metric(ctx, f"drift_{name}", value, None) for name, value in figures.items()])


def predicted(ctx: StageContext, true: Sequence[Transition], name: str) -> tuple[list[Prediction], list[Generation]]:
    """Predictions of steps whose truth is known, in their order, and their token records."""
    if not true:
        return [], []
    store = Store(ctx, config_of(ctx.method).store)
    asked = []
    for row in true:
        [near] = store.nearest(row.family, [situation_of(row)])
        step, situation = f"{name}-r{ctx.round:04d}-{row.transition_id}", situation_of(row)
        asked.append(Asked(step, row.family, row.episode_id, situation, tuple(row.actions), near, held_to=row))
    answered = ExperienceModel(ctx).predict(asked)
    return [prediction_row(each, ctx.round) for each in answered], [each.generation for each in answered]


def require_truth(ctx: StageContext) -> None:
    """Raise BadInput where synthetic episodes would be played in a model that was never fitted, or that the last
    validation found below the floors."""
    if not config_of(ctx.method).share(ctx.round):
        return
    rounds = range(ctx.round, 0, -1)
    last = next((each for each in rounds if ctx.recipe.resolve(ctx.method, each, VALIDATE, 0) is not None), None)
    if last is None:
        raise BadInput(
            f"no round up to {ctx.round} fits the experience model: the rounds before the fork played nothing in it",
            expected="a fit before the first synthetic episode",
            where="method.recipe.explore.every",
            next_step=f"fork again with --set method.recipe.explore.every=1, or another interval at which round "
            f"{ctx.round} has a fit",
        )
    # Its own round's plan has applied these floors; of an inherited round they may have been others.
    floors = config_of(ctx.method).truth
    if last < ctx.round and config_of(maker_of(ctx.recipe, ctx.method, last)[1]).truth == floors:
        return
    metrics = {row.name: row.value for row in ctx.rows_at(Metric, last, VALIDATE)}
    alarms = alarms_of(metrics, floors)
    if alarms:
        told = ", ".join(f"{name} is {metrics[name]:.2f}" for name in alarms)
        fit = {row.name: row.value for row in ctx.rows_at(Metric, last, CORPUS)}
        nothing = "" if fit[TRANSITIONS] > fit[TOO_LONG] else "; its fit learned from no transition"
        raise BadInput(
            f"the experience model is not true enough to play in: {told}{nothing}",
            expected="; ".join(f"{name}: {alarm}" for name, alarm in alarms.items()),
            where=f"round {last}, stage {VALIDATE}",
            next_step="read the table predictions of that stage; then begin an experiment with more real episodes "
            "(method.recipe.explore.first), more epochs (fit.epochs), or a lower floor (truth)",
        )


def _metric(ctx: StageContext, name: str, value: float, alarm: str | None) -> Metric:
    return Metric(round=ctx.round, stage=ctx.stage.name, name=name, value=value, alarm=alarm)
