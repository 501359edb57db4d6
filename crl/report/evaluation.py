"""The results of an evaluation: one per task family and arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crl.records import Evaluation
from crl.report.rates import Rate


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The episodes of one task family in one arm."""

    family: str
    arm: str
    """In words: `with bank`."""
    won: Rate
    actions_per_game: float
    invalid_share: float
    """Invalid actions, as a share of all."""
    guided: int
    """Episodes that were given an experience."""


def results(rows: Sequence[Evaluation]) -> list[ArmResult]:
    """The results by family and arm, in order of their names."""
    found = []
    for family, arm in sorted({(row.family, row.arm) for row in rows}):
        mine = [row for row in rows if (row.family, row.arm) == (family, arm)]
        turns = sum(row.turns for row in mine)
        found.append(
            ArmResult(
                family=family,
                arm=arm.replace("_", " "),
                won=Rate(sum(row.success for row in mine), len(mine)),
                actions_per_game=turns / len(mine),
                invalid_share=sum(row.invalid_actions for row in mine) / max(turns, 1),
                guided=sum(row.guided for row in mine),
            )
        )
    return found
