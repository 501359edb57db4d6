"""Success rates and their intervals against SciPy and published values; results by task, on average, on the page."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from crl.records import Evaluation
from crl.report.page import render
from crl.report.success import (
    AVERAGE,
    NONE,
    Rate,
    average,
    averages,
    condition_results,
    effective_episodes,
    pass_at,
    wilson,
    with_averages,
)
from crl.report.summary import summarize
from crl.report.views import query
from tests.unit.lab.table.recorded import WITH, WITHOUT, Won, recorded, rows
from tests.unit.report.builder import build_run, write_stage
from tests.unit.report.test_page import Page

WON: Won = {
    ("lake", WITH): [1, 1, 0], ("lake", WITHOUT): [1, 0, 0], ("pond", WITH): [1], ("pond", WITHOUT): [0],
    ("lake", "random"): [0] * 8,
}  # fmt: skip


def test_results_are_means_of_the_episodes() -> None:
    found = {(each.task, each.condition): each for each in condition_results(rows(1, WON))}
    lake = found["lake", WITH]
    assert lake.won == Rate(2, 3) and (lake.success.low, lake.success.high) == wilson(2, 3)
    assert (lake.episodes, lake.guided, lake.condition_words) == (3, 3, "with bank")
    assert (lake.score, lake.actions) == pytest.approx(((1 + 1 - 1) / 3, (4 + 4 + 10) / 3))
    assert (lake.tokens_read, lake.tokens_written) == pytest.approx((80 / 3, 40 / 3))
    assert lake.invalid_share == pytest.approx(1 / 18)
    assert list(found) == sorted(found)


def test_an_average_gives_each_task_equal_weight() -> None:
    with_bank, without_bank = averages(
        condition_results(rows(1, {place: won for place, won in WON.items() if "bank" in place[1]}))
    )
    assert with_bank.success.mean == pytest.approx((2 / 3 + 1) / 2) and with_bank.score == pytest.approx(
        (1 / 3 + 1) / 2
    )
    assert with_bank.actions == pytest.approx((6 + 4) / 2) and without_bank.tokens == pytest.approx((50 + 60) / 2)
    assert (with_bank.task, with_bank.won, with_bank.tasks, with_bank.episodes) == (AVERAGE, None, 2, 4)
    listed = [(each.task, each.condition) for each in with_averages(condition_results(rows(1, WON)))]
    assert (AVERAGE, "random") not in listed and (AVERAGE, WITH) in listed, "one task is its own average"


def test_what_broke_is_counted_as_lost_and_told() -> None:
    played = rows(1, {("lake", WITH): [1, 0], ("pond", WITH): [0]})
    played[1:] = [dataclasses.replace(row, stop_reason="error") for row in played[1:]]
    lake, pond, both = with_averages(condition_results(played))
    assert (lake.won_words, pond.won_words) == ("1/2, 1 broke", "0/1, 1 broke")
    assert [each.metrics()["broken"] for each in (lake, pond, both)] == [1, 1, 2]


def test_the_interval_of_one_task_is_wilsons_and_of_none_there_is_none() -> None:
    for won, games in [(0, 3), (2, 7), (5, 5)]:
        found = average([Rate(won, games)])
        assert found is not None
        assert (found.low, found.high) == pytest.approx(wilson(won, games))
    assert average([]) is None and average([Rate(1, 2), Rate(0, 0)]) is None
    assert average([Rate(4, 4), Rate(9, 9)]) is not None


def test_the_interval_of_an_average_is_made_of_those_of_the_tasks() -> None:
    found = average([Rate(3, 16), Rate(30, 40), Rate(8, 8)])
    ends = [
        stats.binomtest(won, games).proportion_ci(0.95, method="wilson") for won, games in [(3, 16), (30, 40), (8, 8)]
    ]
    shares = [3 / 16, 3 / 4, 1.0]
    mean = sum(shares) / 3
    below = sum((share - end.low) ** 2 for share, end in zip(shares, ends, strict=True)) ** 0.5 / 3
    above = sum((end.high - share) ** 2 for share, end in zip(shares, ends, strict=True)) ** 0.5 / 3
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - below, mean + above))


def test_the_interval_of_an_average_holds_the_truth_as_often_as_it_says() -> None:
    """2,000 draws: of an interval that held with 0.93, 1,810 hits would be 5 standard deviations away."""
    generator, tasks = random.Random(7), [(0.1, 16), (0.5, 24), (0.95, 16)]
    truth = sum(share for share, _ in tasks) / len(tasks)
    hits = 0
    for _ in range(2000):
        found = average([Rate(sum(generator.random() < share for _ in range(games)), games) for share, games in tasks])
        assert found is not None
        hits += found.low <= truth <= found.high
    assert hits > 1860


@pytest.mark.usefixtures("plain_charts")
def test_the_page_shows_them_by_task_and_on_average(tmp_path: Path) -> None:
    run = recorded(tmp_path, "one", {0: WON, 2: {**WON, ("lake", WITH): [1, 1, 1]}})
    newest = summarize(run)[-1]
    wanted = condition_results(rows(2, {**WON, ("lake", WITH): [1, 1, 1]}))
    assert [(each.task, each.condition, each.won, each.guided) for each in newest.evaluations] == [
        (each.task, each.condition, each.won, each.guided) for each in wanted
    ]
    assert [each.score for each in newest.evaluations] == pytest.approx([each.score for each in wanted])
    page = Page(render(run))
    cells = {(row[0], row[1]): row[2:] for row in page.table("Held out")}
    lake = average([Rate(1, 3)])
    assert lake is not None
    assert cells["lake", "without bank"] == ["1/3", f"33 % [{lake.span}]", "−0.33", "8.0", "33", "17", "8.33 %"]
    assert cells[AVERAGE, "with bank"][1].startswith("100 % [") and cells[AVERAGE, "with bank"][2:4] == ["1.00", "4.0"]
    assert (AVERAGE, "random") not in cells
    every = page.table("Evaluations")
    assert [row[:3] for row in every[1:]] == [
        [number, condition, tasks]
        for number in ("2", "0")
        for condition, tasks in (("random", "1"), ("with bank", "2"), ("without bank", "2"))
    ]


@pytest.mark.usefixtures("plain_charts")
def test_what_the_base_models_did_is_among_the_evaluations(tmp_path: Path) -> None:
    page = Page(render(build_run(tmp_path / "run")))
    assert [row[:2] for row in page.table("Evaluations")[1:]] == [
        ["2", "with bank"], ["2", "without bank"], ["0", "without bank"], ["0 base", "without bank"],
    ]  # fmt: skip
    assert page.table("Evaluations")[-1][3].startswith("0 % [")


@pytest.mark.usefixtures("plain_charts")
def test_a_run_without_an_evaluation_has_no_such_section(tmp_path: Path) -> None:
    assert Page(render(recorded(tmp_path, "none", {}))).table("Held out") == []


@pytest.mark.parametrize("episodes", [1, 2, 8, 64, 1000])
def test_the_interval_is_wilsons(episodes: int) -> None:
    for successes in {0, 1, episodes // 3, episodes // 2, episodes - 1, episodes}:
        found = stats.binomtest(successes, episodes).proportion_ci(0.95, method="wilson")
        assert wilson(successes, episodes) == pytest.approx((found.low, found.high), abs=1e-12)


def test_published_values() -> None:
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
    for successes, episodes, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611),
                                           (1, 29, 0.0061, 0.1718)):  # fmt: skip
        assert wilson(successes, episodes) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "episodes"), [(1, 0), (0, 0), (3, 2), (-1, 2)])
def test_what_is_no_rate_is_refused(successes: int, episodes: int) -> None:
    with pytest.raises(ValueError, match="no rate"):
        wilson(successes, episodes)


def test_in_words() -> None:
    rate = Rate(3, 8)
    assert (str(rate), rate.percent, rate.span, rate.words) == ("3/8", "38 %", "14–69", "3/8 38 % [14–69]")
    assert Rate(0, 8).span == "0–32" and Rate(8, 8).span == "68–100"
    assert {str(NONE), NONE.percent, NONE.span, NONE.words} == {"–"} and NONE.value is None and NONE.interval is None
    assert rate + Rate(1, 8) == Rate(4, 16) and rate.value == 0.375


def test_broken_episodes_are_told_where_there_are_any() -> None:
    rate = Rate(53, 64, 3)
    assert (str(rate), rate.short) == ("53/64, 3 broke", "53/64 83 %, 3 broke")
    assert rate.words == "53/64 83 % [72–90], 3 broke"
    assert rate + Rate(1, 8, 1) == Rate(54, 72, 4) and rate.interval == Rate(53, 64).interval, "they count as lost"


def reckoned(won: int, plays: int, k: int) -> float:
    """The share of all choices of k plays that hold a won one."""
    games = [place < won for place in range(plays)]
    chosen = list(itertools.combinations(games, k))
    return sum(any(each) for each in chosen) / len(chosen)


@pytest.mark.parametrize("plays", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_choices_with_a_won_play(plays: int) -> None:
    for won, k in itertools.product(range(plays + 1), range(1, plays + 1)):
        assert pass_at(won, plays, k) == pytest.approx(reckoned(won, plays, k), abs=1e-12)


def plays(counts: Sequence[int], each: int) -> list[Evaluation]:
    """Held-out tasks with so many won plays of `each`."""
    rows_of_play = [rows(1, {("lake", WITHOUT): [place < won for won in counts]}) for place in range(each)]
    return [
        dataclasses.replace(row, evaluation_id=f"{row.evaluation_id}-p{play}")
        for play, listed in enumerate(rows_of_play)
        for row in listed
    ]


def test_results_of_several_plays_have_pass_at_k_with_intervals() -> None:
    counts = [0, 0, 1, 2, 5, 6, 6, 3]
    [found] = condition_results(plays(counts, 6))
    assert found.won is not None and (found.won.successes, found.won.episodes) == (sum(counts), 48)
    assert list(found.pass_at) == [2, 4, 6], "powers of two, and all plays; pass@1 is the success"
    for k, value in found.pass_at.items():
        assert value.mean == pytest.approx(np.mean([reckoned(won, 6, k) for won in counts]))
        assert 0 <= value.low < value.mean < value.high <= 1
    solved = sum(won > 0 for won in counts)
    assert (found.pass_at[6].low, found.pass_at[6].high) == pytest.approx(wilson(solved, 8)), "one choice a task"
    assert found.metrics()["pass_at"][4]["mean"] == found.pass_at[4].mean
    [once] = condition_results(plays([1, 0, 1], 1))
    assert once.pass_at == {} and once.won == Rate(2, 3) and "pass_at" not in once.metrics()


def test_the_average_of_pass_at_k_is_over_the_tasks() -> None:
    pond = [dataclasses.replace(row, family="pond") for row in plays([4, 0], 4)]
    lake, other, both = with_averages(condition_results([*plays([1, 3, 2], 4), *pond]))
    assert both.task == AVERAGE
    assert both.pass_at[2].mean == pytest.approx((lake.pass_at[2].mean + other.pass_at[2].mean) / 2)
    fewer = [dataclasses.replace(row, family="sea") for row in plays([1], 2)]
    assert list(with_averages(condition_results([*plays([1, 3], 4), *fewer]))[-1].pass_at) == [2], "what all have"


def test_plays_of_one_task_are_no_further_tasks() -> None:
    """The interval of many plays of few tasks is that of the tasks where they differ, and of the plays where not."""
    [apart] = condition_results(plays([8, 8, 0, 0, 8, 0], 8))
    assert (apart.success.low, apart.success.high) == pytest.approx(wilson(3, 6)), "each play says the same again"
    [alike] = condition_results(plays([4] * 6, 8))
    assert (alike.success.low, alike.success.high) == pytest.approx(wilson(24, 48)), "as many as there are"
    [lost] = condition_results(plays([0] * 6, 8))
    assert (lost.success.low, lost.success.high) == wilson(0, 6), "nobody knows how tasks differ"
    [single] = condition_results(plays([5], 8))
    low, high = wilson(0.625, 1)
    assert (single.success.low, single.success.high) == (low, high)


@pytest.mark.parametrize("spread", [0.5, 5.0])
def test_the_interval_of_several_plays_holds_the_truth_as_often_as_it_says(spread: float) -> None:
    """800 draws of 16 tasks with 8 plays: of an interval that held with 0.9, 735 hits would be 3 deviations away."""
    generator, hits = np.random.default_rng(0), 0
    for _ in range(800):
        counts = generator.binomial(8, generator.beta(spread, spread, size=16))
        found = Rate(int(counts.sum()), 128, effective=effective_episodes(list(counts / 8), 128)).interval
        assert found is not None
        hits += found[0] <= 0.5 <= found[1]
    assert hits >= 735, hits


@pytest.mark.slow
def test_sql_counts_plays_as_results_do(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    cases = [[0, 0, 1, 2, 5, 6], [6, 0, 6, 0], [3, 3, 3], [0, 0], [2]]
    for number, counts in enumerate(cases, start=3):
        held_out = [dataclasses.replace(row, round=number) for row in plays(counts, 6)]
        write_stage(run, number, "evaluate", [held_out])
    for number, counts in enumerate(cases, start=3):
        [found] = condition_results(plays(counts, 6))
        _, [(low, high)] = query(run, f"SELECT low, high FROM success_by_condition WHERE round = {number}")
        assert (low, high) == pytest.approx((found.success.low, found.success.high))
        _, listed = query(run, f"SELECT k, tasks, pass_at_k, low, high FROM pass_at_k WHERE round = {number}")
        assert {k: each for k, _, *each in listed} == {
            k: pytest.approx([value.mean, value.low, value.high]) for k, value in found.pass_at.items()
        }
        assert {tasks for _, tasks, *_ in listed} == {len(counts)}
        summary = next(each for each in summarize(run) if each.round == number)
        assert summary.without_bank == found.won
        assert summary.evaluations[0].pass_at.keys() == found.pass_at.keys()
        assert summary.evaluations[0].success.low == pytest.approx(found.success.low)
    assert "pass@6" in render(run)
