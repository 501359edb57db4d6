"""Success rates and their intervals against SciPy and published values; results by task, on average, on the page."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from scipy import stats

from crl.report.page import render
from crl.report.success import AVERAGE, NONE, Rate, average, averages, condition_results, wilson, with_averages
from crl.report.summary import summarize
from tests.unit.lab.table.recorded import WITH, WITHOUT, Won, recorded, rows
from tests.unit.report.builder import build_run
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
