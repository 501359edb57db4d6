"""How true the experience model is, as figures: pure functions over predictions of steps whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence

from crl.recipes.dreamgym.config import FEWEST_UNSEEN, ValidateConfig
from crl.recipes.dreamgym.form import OK
from crl.recipes.dreamgym.rows import ENDINGS, HELD_OUT, Prediction, Transition
from crl.rounds.alarms import Figures

FLOORED = ("observation_agreement", "reward_accuracy", "ending_accuracy")
"""Figures that have a floor."""
UNSEEN = "unseen_{}"
"""Name of such a figure of the unseen steps alone."""


def gap_bound(reward_error: float, transition_error: float, largest_reward: float, gamma: float) -> float:
    """|J_real − J_synthetic| ≤ ε_R / (1 − γ) + 2 γ R_max ε_P / (1 − γ)² (DreamGym's bound).

    ε_R is the largest expected error of a reward, ε_P the largest total variation of the next state, R_max the largest
    absolute reward. Means over held-out steps stand for both, so this is an estimate and no guarantee.
    """
    return reward_error / (1 - gamma) + 2 * gamma * largest_reward * transition_error / (1 - gamma) ** 2


def truth_figures(
    rows: Sequence[Prediction], true: Sequence[Transition], gamma: float, seen: Sequence[bool]
) -> Figures:
    """Figures of predictions and the steps they are held to, in one order; of none only that there are none. `seen`
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
    figures = {
        **_shares(judged, 1),
        **{UNSEEN.format(name): share for name, share in _shares(unseen, FEWEST_UNSEEN).items()},
        "endings": float(sum(step.outcome in ENDINGS for step in true)),
        "seen_share": 1 - len(unseen) / count,
        "predictions_malformed": sum(row.reason_code != OK for row in rows) / count,
        "epsilon_r": error,
        "epsilon_p": wrong / count,
    }
    if largest:
        figures["gap_bound"] = gap_bound(error, wrong / count, largest, gamma)
    figures[HELD_OUT] = float(count)
    return figures


def _shares(judged: Sequence[tuple[Prediction, Transition]], fewest: int) -> Figures:
    """Shares of right predictions by the names of `FLOORED`, each where it is about so many steps at least."""
    right = (
        [bool(row.observation_agrees) for row, _ in judged],
        [bool(row.outcome_agrees) for row, _ in judged],
        [bool(row.outcome_agrees) for row, step in judged if step.outcome in ENDINGS],
    )
    return {name: sum(each) / len(each) for name, each in zip(FLOORED, right, strict=True) if len(each) >= fewest}


def alarms_of(figures: Figures, config: ValidateConfig) -> dict[str, str]:
    """What is below its floor, by figure: of the unseen steps where they have one, else of all. With a floor, also that
    there was nothing to hold the model to."""
    floors = dict(zip(FLOORED, (config.observation_floor, config.reward_floor, config.ending_floor), strict=True))
    wanted = {name: floor for name, floor in floors.items() if floor is not None}
    if not figures[HELD_OUT]:
        return {HELD_OUT: "no real step says how true the model is: nothing is played in it"} if wanted else {}
    found = {}
    for name, floor in wanted.items():
        unseen = UNSEEN.format(name)
        judged, steps = (unseen, "unseen held-out steps") if unseen in figures else (name, "all held-out steps")
        if judged == "ending_accuracy" and figures.get("endings", 0.0) < FEWEST_UNSEEN:
            continue  # one wrong ending of one would stop the run
        if figures.get(judged, floor) < floor:
            found[judged] = f"below the floor of {floor:g} on {steps}: nothing is played in this model"
    return found
