"""Arms at equal budgets: what they had reached when they had used as much as the most frugal run uses in all.

Success between two evaluations is interpolated. Budgets are those of training: episodes; tokens that were sampled, by
whatever role; steps of the real environment (an episode that a model of the environment played has none).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import BaseModel, ConfigDict

from crl.lab.study.config import Study
from crl.lab.study.figures import RunFigures
from crl.lab.study.statistics import Interval, interval, paired

KINDS = {"episodes": "episodes", "tokens": "generated tokens", "real_steps": "real environment steps"}
"""Budgets by the name of their figures, and what tables call them."""
Runs = Mapping[str, Mapping[int, RunFigures]]
"""Of the finished runs, by arm and seed."""


class AtBudget(BaseModel):
    """An arm's held-out success at a budget."""

    model_config = ConfigDict(frozen=True)

    arm: str
    with_bank: Interval | None
    """None for an arm without a bank."""
    without_bank: Interval
    differences: dict[str, tuple[Interval | None, Interval | None]]
    """By reference, paired by seed: (with bank, against the reference with its bank or without where it has none;
    without bank)."""


class Budget(BaseModel):
    """The arms at one budget."""

    model_config = ConfigDict(frozen=True)

    kind: str
    amount: int
    arms: list[AtBudget]


def equal_budgets(study: Study, runs: Runs) -> list[Budget]:
    """Every budget that some runs used more of than others."""
    found = []
    for kind in KINDS:
        used = [
            amounts[max(amounts)]
            for each in runs.values()
            for run in each.values()
            if (amounts := amounts_of(run, kind))
        ]
        if used and 0 < min(used) < max(used):
            found.append(Budget(kind=kind, amount=min(used), arms=_arms(study, runs, kind, min(used))))
    return found


def reached(run: RunFigures, kind: str, amount: int, *, bank: bool) -> float:
    """Held-out success of a run when it had used an amount of a budget."""
    curve, used = run.success(bank=bank) or run.success(bank=False), getattr(run, kind)
    numbers = sorted(curve)
    return float(np.interp(amount, [used[number] for number in numbers], [curve[number] for number in numbers]))


def amounts_of(run: RunFigures, kind: str) -> dict[int, int]:
    """What a run had used when it was evaluated."""
    used: dict[int, int] = getattr(run, kind)
    return {number: used[number] for number in run.without_bank if number in used}


def _arms(study: Study, runs: Runs, kind: str, amount: int) -> list[AtBudget]:
    values = {
        (arm, bank): {seed: reached(run, kind, amount, bank=bank) for seed, run in each.items()}
        for arm, each in runs.items()
        for bank in (True, False)
        if not bank or any(run.with_bank for run in each.values())
    }
    found = []
    for arm in (name for name in study.arms if runs.get(name)):
        mine = values.get((arm, True))
        differences = {}
        for reference in study.references_of(arm):
            if (reference, False) in values:
                against = values.get((reference, True), values[reference, False])
                without = paired(values[arm, False], values[reference, False])
                differences[reference] = (None if mine is None else paired(mine, against), without)
        found.append(
            AtBudget(
                arm=arm,
                with_bank=None if mine is None else interval(list(mine.values())),
                without_bank=interval(list(values[arm, False].values())),
                differences=differences,
            )
        )
    return found
