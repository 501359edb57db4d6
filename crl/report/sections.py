"""What a recipe adds to the report of its runs: charts of its metrics, and tables of its rounds.

Its config names it (`RecipeConfig.REPORT`); the report imports it for a run that has rounds of the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crl.config.method import RECIPES
from crl.config.registry import load_object
from crl.report.summary import RoundSummary

Observed = tuple[str, bool, tuple[tuple[str, str, int], ...]]
"""A chart of metrics of the stage `health`: title, whether shares are drawn, its lines as (name, metric, color)."""
Rows = list[dict[str, str]]
"""Cells by column."""
Table = Callable[[Sequence[RoundSummary]], Rows]
"""The rows of what some rounds show, none where there is nothing."""


@dataclass(frozen=True)
class Section:
    """The part of one recipe."""

    charts: tuple[Observed, ...] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    """By title."""


def metric_table(seen: str, columns: Mapping[str, tuple[str, Callable[[float | None], str]]]) -> Table:
    """A row per round that has the metric `seen`: its metrics of the stage `health` by column, and how each is shown
    (`crl.report.cells`)."""

    def rows(summaries: Sequence[RoundSummary]) -> Rows:
        return [
            {"round": each.label, **{name: shown(each.health.get(metric)) for name, (metric, shown) in columns.items()}}
            for each in summaries
            if seen in each.health
        ]

    return rows


def sections_of(summaries: Sequence[RoundSummary]) -> list[Section]:
    """What the recipes that made these rounds add."""
    kinds = dict.fromkeys(each.recipe for each in summaries if each.recipe)
    named = (RECIPES.load(kind).REPORT for kind in kinds)
    return [load_object(name) for name in named if name is not None]
