"""Stages `drift` and `validate`: the experience model held to real steps that no fit sees, before and after a fit.

`validate` asks the model as it now is. `drift` asks the model of the fit before, shown what the store had until this
round, about what was explored since: how well it still answers for the newer policy. Neither trains anything. What is
found below a minimum is an alarm of the round, and stops the stage that plans synthetic tasks (:func:`require_truth`).
How true the model is, as metrics, are pure functions over predictions (:func:`truth_metrics`).
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.config import Method
from crl.errors import BadInput
from crl.recipes.dreamgym.config import FEWEST_UNSEEN, ValidateConfig, config_of
from crl.recipes.dreamgym.corpus import CORPUS, TOO_LONG, TRANSITIONS
from crl.recipes.dreamgym.explore import EXPLORE, fitted_before
from crl.recipes.dreamgym.form import OK
from crl.recipes.dreamgym.predicting import Asked, ExperienceModel, prediction_row
from crl.recipes.dreamgym.prompts import situation_of
from crl.recipes.dreamgym.rows import ENDINGS, HELD_OUT, PoolItem, Prediction, Transition
from crl.recipes.dreamgym.store import POOL, Store, items_of, newest, seen, transitions_of
from crl.records import Generation, Metric
from crl.rounds.alarms import Metrics
from crl.rounds.context import StageContext
from crl.rounds.stage import maker_of

VALIDATE, DRIFT = "validate", "drift"
FLOORED = ("observation_agreement", "reward_accuracy", "ending_accuracy")
"""Metrics that have a minimum."""
UNSEEN = "unseen_{}"
"""Name of such a metric of the unseen steps alone."""


def drift_due(method: Method, round_number: int) -> bool:
    """Before every fit but that of round 1. Whether a fork's first fit is one only the stage can tell."""
    return round_number > 1 and config_of(method).fits(round_number)


def held_out_rows(ctx: StageContext) -> list[Transition]:
    """The newest real transitions that no fit sees, of every task family."""
    items = items_of(ctx.table(PoolItem, POOL), [HELD_OUT])
    return transitions_of(ctx, newest(items, config_of(ctx.method).truth.max_transitions))


def validate(ctx: StageContext) -> None:
    """Predict them with the model as it now is; metrics, and alarms where they are below the minimum."""
    config = config_of(ctx.method).truth
    true = held_out_rows(ctx)
    rows, records = predicted(ctx, true, VALIDATE)
    metrics = truth_metrics(rows, true, config.gamma, seen(ctx, true))
    ctx.write(Prediction, rows)
    ctx.write(Generation, records)
    ctx.write_metrics(metrics, alarms_of(metrics, config))


def drift(ctx: StageContext) -> None:
    """Predict what was explored since the fit before with the model of that fit; nothing where there was none."""
    config = config_of(ctx.method).truth
    fitted = fitted_before(ctx.recipe, ctx.method, ctx.round)
    explored = ctx.rows(Transition, EXPLORE) if fitted else []
    true = newest([row for row in explored if row.split == HELD_OUT], config.max_transitions)
    rows, records = predicted(ctx, true, DRIFT)
    metrics = truth_metrics(rows, true, config.gamma, seen(ctx, true))
    ctx.write(Prediction, rows)
    ctx.write(Generation, records)
    ctx.write_metrics({f"drift_{name}": value for name, value in metrics.items()})


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
    validation found below the minimums."""
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
    # Its own round's plan has applied these minimums; of an inherited round they may have been others.
    minimums = config_of(ctx.method).truth
    if last < ctx.round and config_of(maker_of(ctx.recipe, ctx.method, last)[1]).truth == minimums:
        return
    metrics = {row.name: row.value for row in ctx.rows_at(Metric, last, VALIDATE)}
    alarms = alarms_of(metrics, minimums)
    if alarms:
        told = ", ".join(f"{name} is {metrics[name]:.2f}" for name in alarms)
        fit = {row.name: row.value for row in ctx.rows_at(Metric, last, CORPUS)}
        nothing = "" if fit[TRANSITIONS] > fit[TOO_LONG] else "; its fit learned from no transition"
        raise BadInput(
            f"the experience model is not true enough to play in: {told}{nothing}",
            expected="; ".join(f"{name}: {alarm}" for name, alarm in alarms.items()),
            where=f"round {last}, stage {VALIDATE}",
            next_step="read the table predictions of that stage; then begin an experiment with more real episodes "
            "(method.recipe.explore.first), more epochs (fit.num_train_epochs), or a lower minimum (truth)",
        )


def gap_bound(reward_error: float, transition_error: float, largest_reward: float, gamma: float) -> float:
    """|J_real − J_synthetic| ≤ ε_R / (1 − γ) + 2 γ R_max ε_P / (1 − γ)² (DreamGym's bound).

    ε_R is the largest expected error of a reward, ε_P the largest total variation of the next state, R_max the largest
    absolute reward. Means over held-out steps stand for both, so this is an estimate and no guarantee.
    """
    return reward_error / (1 - gamma) + 2 * gamma * largest_reward * transition_error / (1 - gamma) ** 2


def truth_metrics(
    rows: Sequence[Prediction], true: Sequence[Transition], gamma: float, seen: Sequence[bool]
) -> Metrics:
    """Metrics of predictions and the steps they are held to, in one order; of none only that there are none. `seen`
    says which of the steps the model could copy.

    - `observation_agreement`: share of the next observations that are the true ones;
    - `reward_accuracy`: share whose outcome and reward are;
    - `ending_accuracy`: the same of the steps with which the environment ends an episode, where there are any: they are
      few, and a model that never ends one is right about all others;
    - `endings`: how many such steps there are;
    - `unseen_…`: each of the three of the steps that are not `seen`, where these are at least `FEWEST_UNSEEN`;
    - `seen_share`: share of the steps that are;
    - `epsilon_r`: mean distance of the rewards; `epsilon_p`: share of wrong next states, observation or ending, which
      is the total variation where the environment is deterministic; `gap_bound`: :func:`gap_bound` of both, unless none
      of the steps has a reward: that bounds nothing;
    - `predictions_malformed`: share of the outputs that are none. They count as wrong;
    - `held_out`: how many steps.
    """
    if not rows:
        return {HELD_OUT: 0.0}
    count = len(rows)
    error = sum(row.reward_error or 0.0 for row in rows) / count
    wrong = sum(not row.observation_agrees or row.outcome != step.outcome for row, step in zip(rows, true, strict=True))
    largest = max(abs(step.reward) for step in true)
    judged = list(zip(rows, true, strict=True))
    unseen = [pair for pair, copied in zip(judged, seen, strict=True) if not copied]
    metrics = {
        **_shares(judged, 1),
        **{UNSEEN.format(name): share for name, share in _shares(unseen, FEWEST_UNSEEN).items()},
        "endings": float(sum(step.outcome in ENDINGS for step in true)),
        "seen_share": 1 - len(unseen) / count,
        "predictions_malformed": sum(row.reason_code != OK for row in rows) / count,
        "epsilon_r": error,
        "epsilon_p": wrong / count,
    }
    if largest:
        metrics["gap_bound"] = gap_bound(error, wrong / count, largest, gamma)
    metrics[HELD_OUT] = float(count)
    return metrics


def _shares(judged: Sequence[tuple[Prediction, Transition]], fewest: int) -> Metrics:
    """Shares of right predictions by the names of `FLOORED`, each where it is about so many steps at least."""
    right = (
        [bool(row.observation_agrees) for row, _ in judged],
        [bool(row.outcome_agrees) for row, _ in judged],
        [bool(row.outcome_agrees) for row, step in judged if step.outcome in ENDINGS],
    )
    return {name: sum(each) / len(each) for name, each in zip(FLOORED, right, strict=True) if len(each) >= fewest}


def alarms_of(metrics: Metrics, config: ValidateConfig) -> dict[str, str]:
    """What is below its minimum, by metric: of the unseen steps where they have one, else of all. With a minimum, also
    that there was nothing to hold the model to."""
    minimums = dict(
        zip(
            FLOORED,
            (config.min_observation_accuracy, config.min_reward_accuracy, config.min_ending_accuracy),
            strict=True,
        )
    )
    wanted = {name: minimum for name, minimum in minimums.items() if minimum is not None}
    if not metrics[HELD_OUT]:
        return {HELD_OUT: "no real step says how true the model is: nothing is played in it"} if wanted else {}
    found = {}
    for name, minimum in wanted.items():
        unseen = UNSEEN.format(name)
        judged, steps = (unseen, "unseen held-out steps") if unseen in metrics else (name, "all held-out steps")
        if judged == "ending_accuracy" and metrics.get("endings", 0.0) < FEWEST_UNSEEN:
            continue  # one wrong ending of one would stop the run
        if metrics.get(judged, minimum) < minimum:
            found[judged] = f"below the minimum of {minimum:g} on {steps}: nothing is played in this model"
    return found
