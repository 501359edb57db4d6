"""How true the experience model is, as figures: pure functions over predictions of steps whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence

from crl.learn.health import Figures
from crl.recipes.dreamgym.config import ValidateConfig
from crl.recipes.dreamgym.form import OK
from crl.recipes.dreamgym.rows import CONTINUES, HELD_OUT, Prediction, Transition


def gap_bound(reward_error: float, transition_error: float, largest_reward: float, gamma: float) -> float:
    """|J_real − J_synthetic| ≤ ε_R / (1 − γ) + 2 γ R_max ε_P / (1 − γ)² (DreamGym's bound).

    ε_R is the largest expected error of a reward, ε_P the largest total variation of the next state, R_max the largest
    absolute reward. Means over held-out steps stand for both, so this is an estimate and no guarantee.
    """
    return reward_error / (1 - gamma) + 2 * gamma * largest_reward * transition_error / (1 - gamma) ** 2


def truth_figures(rows: Sequence[Prediction], true: Sequence[Transition], gamma: float) -> Figures:
    """Figures of predictions and the steps they are held to, in one order; of none only that there are none.

    - `observation_agreement`: share of the next observations that are the true ones;
    - `reward_accuracy`: share whose outcome and reward are;
    - `ending_accuracy`: the same of the steps that end their episode, which are few;
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
    ended = [row for row, step in zip(rows, true, strict=True) if step.outcome != CONTINUES]
    figures = {
        "observation_agreement": sum(bool(row.observation_agrees) for row in rows) / count,
        "reward_accuracy": sum(bool(row.outcome_agrees) for row in rows) / count,
        "predictions_malformed": sum(row.reason_code != OK for row in rows) / count,
        "epsilon_r": error,
        "epsilon_p": wrong / count,
    }
    if largest:
        figures["gap_bound"] = gap_bound(error, wrong / count, largest, gamma)
    figures[HELD_OUT] = float(count)
    if ended:
        figures["ending_accuracy"] = sum(bool(row.outcome_agrees) for row in ended) / len(ended)
    return figures


def alarms_of(figures: Figures, config: ValidateConfig) -> dict[str, str]:
    """What is below its floor, by figure; with a floor, also that there was nothing to hold the model to."""
    floors = {"observation_agreement": config.observation_floor, "reward_accuracy": config.reward_floor}
    wanted = {name: floor for name, floor in floors.items() if floor is not None}
    if not figures[HELD_OUT]:
        return {HELD_OUT: "no real step says how true the model is: nothing is played in it"} if wanted else {}
    return {
        name: f"below the floor of {floor:g}: nothing is played in this model"
        for name, floor in wanted.items()
        if figures[name] < floor
    }
