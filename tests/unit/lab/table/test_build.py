"""Rows of a table: which runs share one, means and intervals against SciPy's, and what has to be noted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from crl.lab.table.build import Table, TableMetric, build, grouped, same_but_seed
from crl.lab.table.read import RunResults, read_results
from tests.unit.lab.table.recorded import FIRST, WITH, WITHOUT, Won, keep, recorded, results_of

WON: Won = {
    ("lake", WITH): [1, 1, 0, 1], ("lake", WITHOUT): [1, 0, 0, 0], ("pond", WITH): [1, 1],
    ("pond", WITHOUT): [0, 1],
}  # fmt: skip
BASELINE = {"method__recipe__kind": "baseline"}


def table(*runs: RunResults, which: Any = "last", **labels: str) -> Table:
    return build(grouped([(labels.get(run.name), run) for run in runs]), which)


def study(root: Path, *lakes: list[int], name: str = "study-both") -> list[RunResults]:
    """Runs of one method with seeds of their own, whose worlds are seeds too."""
    return [
        results_of(root, f"{name}-s{seed}", {**WON, ("lake", WITH): lake}, seed=seed)
        for seed, lake in enumerate(lakes, start=101)
    ]


def test_one_run_is_a_row_with_its_bank_and_one_without(tmp_path: Path) -> None:
    made = table(results_of(tmp_path, "one", WON))
    assert made.tasks == ("lake", "pond") and [(row.label, row.condition) for row in made.rows] == [
        ("one", WITH), ("one", WITHOUT)
    ]  # fmt: skip
    lake = made.rows[0].cells["lake"].metrics
    wilson = stats.binomtest(3, 4).proportion_ci(0.95, method="wilson")
    assert (lake[TableMetric.success].low, lake[TableMetric.success].high) == pytest.approx((wilson.low, wilson.high))
    assert lake[TableMetric.success].mean == 0.75 and lake[TableMetric.score].mean == 0.5
    assert lake[TableMetric.actions].mean == (3 * 4 + 10) / 4 and lake[TableMetric.tokens].mean == (3 * 30 + 60) / 4
    assert lake[TableMetric.score].low is None, "one run says nothing of other seeds"


def test_the_average_is_over_tasks_and_not_over_episodes(tmp_path: Path) -> None:
    row = table(results_of(tmp_path, "one", WON)).rows[0]
    assert row.average is not None and row.average.episodes == 6
    found = row.average.metrics[TableMetric.success]
    assert found.mean == (0.75 + 1.0) / 2
    # Each side: the distances from the rates to Wilson's ends, added as squares, over two tasks.
    lake = stats.binomtest(3, 4).proportion_ci(0.95, method="wilson")
    pond = stats.binomtest(2, 2).proportion_ci(0.95, method="wilson")
    below = ((0.75 - lake.low) ** 2 + (1 - pond.low) ** 2) ** 0.5 / 2
    above = ((lake.high - 0.75) ** 2 + 0) ** 0.5 / 2
    assert (found.low, found.high) == pytest.approx((found.mean - below, min(1, found.mean + above)))


def test_seeds_of_one_method_are_one_row_with_students_interval(tmp_path: Path) -> None:
    runs = study(tmp_path, [1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1])
    made = table(*runs)
    assert [(row.label, row.seeds) for row in made.rows] == 2 * [("study-both", (101, 102, 103))]
    shares = [0.75, 0.5, 1.0]
    low, high = stats.t.interval(0.95, 2, loc=0.75, scale=stats.sem(shares))
    found = made.rows[0].cells["lake"].metrics[TableMetric.success]
    assert (found.mean, found.low, found.high) == pytest.approx((0.75, low, high))
    turns = [(4 * share + 10 * (1 - share)) for share in shares]
    low, high = stats.t.interval(0.95, 2, loc=sum(turns) / 3, scale=stats.sem(turns))
    actions = made.rows[0].cells["lake"].metrics[TableMetric.actions]
    assert (actions.low, actions.high) == pytest.approx((low, high))
    averages = [(share + 1.0) / 2 for share in shares]
    low, high = stats.t.interval(0.95, 2, loc=sum(averages) / 3, scale=stats.sem(averages))
    average = made.rows[0].average
    assert average is not None and (average.runs, average.episodes) == (3, 18)
    assert (average.metrics[TableMetric.success].low, average.metrics[TableMetric.success].high) == pytest.approx(
        (low, high)
    )


def test_a_seed_may_be_in_an_environment_too(tmp_path: Path) -> None:
    @cache
    def method(seed: int, moves: int) -> Any:
        changes = {"method__families__0__environment__held_out_moves": moves}
        return results_of(tmp_path, f"r{seed}-{moves}", WON, seed=seed, **changes).method

    assert same_but_seed(method(3, 3), method(4, 4)), "what has the value of the seed in both is a seed"
    assert same_but_seed(method(1, 3), method(2, 3))
    assert not same_but_seed(method(5, 4), method(6, 3)), "what has another value is a setting"
    assert not same_but_seed(method(1, 2), method(1, 3)), "and one seed is no two seeds"


def test_a_setting_that_happens_to_be_the_seed_is_a_setting(tmp_path: Path) -> None:
    one, other = (
        results_of(tmp_path, f"r{seed}", WON, seed=seed, method__recipe__retrieval__top_k=seed).method
        for seed in (1, 2)
    )
    assert not same_but_seed(one, other)


def test_other_methods_have_other_rows_and_a_method_without_a_bank_has_one(tmp_path: Path) -> None:
    without: Won = {place: won for place, won in WON.items() if place[1] == WITHOUT}
    runs = [*study(tmp_path, [1, 1], [0, 1]), results_of(tmp_path, "plain-s101", without, seed=101, **BASELINE)]
    made = table(*runs)
    assert [(row.label, row.condition, len(row.runs)) for row in made.rows] == [
        ("study-both", WITH, 2), ("study-both", WITHOUT, 2), ("plain-s101", WITHOUT, 1)
    ]  # fmt: skip
    assert not any(
        "plain" in note and "evaluated" in note and "with bank" in note for note in made.footnotes if "pond" in note
    )


def test_a_name_that_is_given_makes_the_row(tmp_path: Path) -> None:
    runs = [results_of(tmp_path, "a", WON, seed=1), results_of(tmp_path, "b", WON, seed=1, **BASELINE)]
    made = table(*runs, a="Ours", b="Ours")
    assert [(row.label, row.runs) for row in made.rows] == 2 * [("Ours", ("a", "b"))]
    assert any("Ours: several runs have seed 1" in note for note in made.footnotes)
    again = results_of(tmp_path / "elsewhere", "a", WON, seed=1)
    assert {row.label for row in table(runs[0], again).rows} == {str(runs[0].path), str(again.path)}


def test_what_is_missing_is_a_gap_and_a_note(tmp_path: Path) -> None:
    half = results_of(tmp_path, "half", {("lake", WITH): [1], ("lake", WITHOUT): [0], ("pond", WITHOUT): [1]})
    other = results_of(tmp_path, "other", {("sea", WITHOUT): [1]}, families=("sea",))
    made = table(half, other)
    assert made.tasks == ("lake", "pond", "sea")
    assert [list(row.cells) for row in made.rows] == [["lake"], ["lake", "pond"], ["sea"]]
    assert all(row.average is None for row in made.rows)
    for note in (
        "half: not evaluated with bank in round 1: pond",
        "half: has no task sea",
        "other: has no task lake, pond",
    ):
        assert note in made.footnotes
    unplayed = table(results_of(tmp_path, "unplayed", {("lake", WITHOUT): [1]}))
    assert "unplayed: not evaluated in round 1: pond" in unplayed.footnotes


def test_a_run_whose_bank_is_empty_is_with_bank_what_it_is_without(tmp_path: Path) -> None:
    held = results_of(tmp_path, "held", WON, seed=1)
    empty = results_of(tmp_path, "empty", {("lake", WITHOUT): [0, 0], ("pond", WITHOUT): [1, 0]}, seed=2)
    made = table(held, empty)
    assert [row.runs for row in made.rows] == 2 * [("held", "empty")]
    mine = [run.cells["lake", condition].result.success.mean for run, condition in ((held, WITH), (empty, WITHOUT))]
    assert made.rows[0].cells["lake"].metrics[TableMetric.success].mean == pytest.approx(sum(mine) / 2)
    assert "empty: its bank is empty in round 1; with bank is without it" in made.footnotes
    assert not any("is empty" in note for note in table(held).footnotes)


def test_games_that_broke_are_noted(tmp_path: Path) -> None:
    run = results_of(tmp_path, "one", WON)
    found = run.cells["pond", WITH]
    (rate,) = found.result.rates
    broke = replace(found, result=replace(found.result, rates=(replace(rate, broken=2),)))
    made = table(replace(run, cells={**run.cells, ("pond", WITH): broke}))
    assert "one: 2 games broke in round 1, and count as lost" in made.footnotes
    assert not any("broke" in note for note in table(run).footnotes)


def test_results_that_are_no_comparison_of_like_with_like_are_noted(tmp_path: Path) -> None:
    longer = recorded(tmp_path, "longer", {1: WON}, method__families__0__environment__max_turns=9)
    keep(longer, 1, {("pond", WITH): [1, 1, 0]})
    made = table(results_of(tmp_path, "one", WON), read_results(longer, "last"))
    [splits] = [note for note in made.footnotes if "seeds differ" in note]
    assert splits.startswith("pond: ") and f"{FIRST}–{FIRST + 2} (3) in longer with bank" in splits
    settings = [note for note in made.footnotes if "other settings" in note]
    assert settings == ["lake: its environment has other settings in one than in longer",
                        "pond: its environment has other settings in one than in longer"]  # fmt: skip
    assert "with results of `crl evaluate`: longer" in made.footnotes
    assert not any(
        "differ" in note or "other settings" in note for note in table(*study(tmp_path, [1, 1, 1, 1])).footnotes
    )


def test_the_best_round_is_an_optimistic_metric(tmp_path: Path) -> None:
    run = results_of(tmp_path, "one", WON)
    assert any("optimistic" in note for note in table(run, which="best").footnotes)
    assert not any("optimistic" in note for note in table(run, which=1).footnotes)
