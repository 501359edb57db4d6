"""Arms at equal budgets: what they had reached when they had used as much as the most frugal run uses in all.

Two arms are compared where they had used as much as the most frugal run of these two: a third arm that uses little does
not move their comparison to the beginning of both. Success between two evaluations is interpolated. Budgets are those
of training: episodes; tokens that were sampled, by whatever role; steps of the real environment (an episode that a
model of the environment played has none).
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
    """By reference, paired by seed, at the smallest amount that a run of the two arms used: (with bank, against the
    reference with its bank or without where it has none; without bank)."""


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
        used = {
            arm: totals
            for arm, each in runs.items()
            if (totals := [amounts[max(amounts)] for run in each.values() if (amounts := amounts_of(run, kind))])
        }
        least = {arm: min(totals) for arm, totals in used.items()}
        most = max((max(totals) for totals in used.values()), default=0)
        if least and 0 < min(least.values()) < most:
            found.append(Budget(kind=kind, amount=min(least.values()), arms=_arms(study, runs, kind, least)))
    return found


def reached(run: RunFigures, kind: str, amount: int, *, bank: bool) -> float:
    """Held-out success of a run when it had used an amount of a budget; without bank where it has none."""
    curve, used = run.success(bank=bank) or run.success(bank=False), getattr(run, kind)
    numbers = sorted(curve)
    return float(np.interp(amount, [used[number] for number in numbers], [curve[number] for number in numbers]))


def amounts_of(run: RunFigures, kind: str) -> dict[int, int]:
    """What a run had used when it was evaluated."""
    used: dict[int, int] = getattr(run, kind)
    return {number: used[number] for number in run.without_bank if number in used}


def _arms(study: Study, runs: Runs, kind: str, least: Mapping[str, int]) -> list[AtBudget]:
    """`least`: what the most frugal run of an arm used in all."""
    banks = {arm for arm, each in runs.items() if any(run.with_bank for run in each.values())}

    def of(arm: str, amount: int, *, bank: bool) -> dict[int, float]:
        return {seed: reached(run, kind, amount, bank=bank) for seed, run in runs[arm].items()}

    found = []
    everywhere = min(least.values())
    for arm in (name for name in study.arms if name in least):
        differences = {}
        for reference in (name for name in study.references_of(arm) if name in least):
            amount = min(least[arm], least[reference])
            with_bank, without = (
                paired(of(arm, amount, bank=bank), of(reference, amount, bank=bank)) for bank in (True, False)
            )
            differences[reference] = (with_bank if arm in banks else None, without)
        found.append(
            AtBudget(
                arm=arm,
                with_bank=interval(list(of(arm, everywhere, bank=True).values())) if arm in banks else None,
                without_bank=interval(list(of(arm, everywhere, bank=False).values())),
                differences=differences,
            )
        )
    return found
