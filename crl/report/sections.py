"""What a recipe adds to the report of its runs: charts of its figures, and tables of its rounds.

Its config names it (`RecipeConfig.REPORT`); the report imports it for a run that has rounds of the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crl.config.method import RECIPES
from crl.config.registry import load_object
from crl.report.summary import RoundSummary

Observed = tuple[str, bool, tuple[tuple[str, str, int], ...]]
"""A chart of figures of the stage `health`: title, whether shares are drawn, its lines as (name, figure, color)."""
Rows = list[dict[str, str]]
"""Cells by column."""


@dataclass(frozen=True)
class Section:
    """The part of one recipe."""

    charts: tuple[Observed, ...] = ()
    tables: Mapping[str, Callable[[Sequence[RoundSummary]], Rows]] = field(default_factory=dict)
    """By title: the rows of what some rounds show, none where there is nothing."""


def sections_of(summaries: Sequence[RoundSummary]) -> list[Section]:
    """What the recipes that made these rounds add."""
    kinds = dict.fromkeys(each.recipe for each in summaries if each.recipe)
    named = (RECIPES.load(kind).REPORT for kind in kinds)
    return [load_object(name) for name in named if name is not None]
