"""Success by task and the average over tasks: which round, which tasks, which words."""

from __future__ import annotations

import math
import re

import pytest

from crl.report.curves import success_charts
from crl.report.markdown import curve_markdown, rounds_markdown
from crl.report.page import environment
from crl.report.round_tables import AVERAGE, newest_tasks, round_tables, task_rows
from crl.report.success import Rate, average, wilson
from crl.report.summary import RoundSummary

ROUNDS = [
    RoundSummary(0, "0", tasks={"without_bank": {"b": Rate(0, 8), "a": Rate(2, 8)}, "random": {"a": Rate(1, 64)}}),
    RoundSummary(
        1,
        "1",
        tasks={
            "free": {"a": Rate(1, 4), "b": Rate(0, 8)},
            "with_bank": {"a": Rate(8, 8), "b": Rate(2, 8)},
            "without_bank": {"a": Rate(4, 8), "b": Rate(0, 8)},
        },
    ),
    RoundSummary(2, "2", tasks={"guided": {"a": Rate(2, 2), "b": Rate(3, 4)}, "free": {"a": Rate(1, 2)}}),
]


def test_the_newest_round_of_training_and_the_newest_that_was_evaluated():
    tasks = newest_tasks(ROUNDS)
    assert tasks is not None and (tasks.names, tasks.rounds) == (["a", "b"], "round 2, held out round 1")
    assert tasks.rate("with_bank", "b") == Rate(2, 8) and tasks.rate("guided", "b") == Rate(3, 4)
    assert tasks.rate("random", "a") == Rate(1, 64) and not tasks.rate("random", "b").episodes
    mean = tasks.average("with_bank")
    assert mean is not None and mean.mean == pytest.approx((1 + 0.25) / 2)
    assert tasks.average("free") is None, "one task has no free episode of this round"


def test_episodes_in_an_experience_model_have_a_column_of_their_own():
    rounds = [RoundSummary(1, "1", tasks={"synthetic": {"a": Rate(3, 4), "b": Rate(0, 4)}}, synthetic=Rate(3, 8))]
    tasks = newest_tasks(rounds)
    assert tasks is not None and tasks.rounds == "round 1"
    rows = task_rows(tasks)
    assert [row["in the model"] for row in rows] == ["3/4 75 %", "0/4 0 %", "38 %"] and rows[0]["free"] == "–"
    assert "in the model" not in task_rows(newest_tasks(ROUNDS))[0]
    assert "| in the experience model | – | 3/8 38 %" in curve_markdown("one", rounds).replace("\u00a0", " ")


def test_the_average_weighs_tasks_and_its_interval_holds_for_one():
    few, many = Rate(1, 2), Rate(0, 1000)
    mean = average([few, many])
    assert mean is not None and mean.mean == 0.25 and mean.low < 0.25 < mean.high
    alone = average([few])
    assert alone is not None and (alone.low, alone.high) == pytest.approx(wilson(1, 2))


def test_the_words_of_the_tables():
    tasks = newest_tasks(ROUNDS)
    assert tasks is not None
    rows = task_rows(tasks)
    assert [row["task"] for row in rows] == ["a", "b", AVERAGE]
    assert rows[0]["guided"] == "2/2 100 %" and rows[1]["free"] == "–"
    assert rows[2]["held out, with bank"].startswith("62 % [") and rows[2]["guided"] == "88 %"
    shown = rounds_markdown("mix", ROUNDS)
    assert "## Tasks, round 2, held out round 1" in shown and "| average |" in shown
    assert any("success by task" in str(table.title) for table in round_tables(ROUNDS))
    assert [chart.title for chart in success_charts(ROUNDS)][-1] == "held-out success, average over tasks"


@pytest.mark.parametrize("every", [2, 10])
def test_a_long_run_of_a_mixture_has_every_evaluation_that_its_chart_has_room_for(every: int, monkeypatch):
    held_out = {condition: {"a": Rate(1, 2), "b": Rate(2, 2)} for condition in ("with_bank", "without_bank")}
    rounds = [
        RoundSummary(number, str(number), tasks=held_out if number % every == 0 else {"guided": {"a": Rate(1, 2)}})
        for number in range(242)
    ]
    drawn: list[RoundSummary] = []
    monkeypatch.setattr("crl.report.curves.average_lines", lambda shown: drawn.extend(shown) or [])
    success_charts(rounds)
    points = [each for each in drawn if "with_bank" in each.tasks]
    groups = math.ceil(242 / 3)  # at most 120 points: three rounds a point
    assert len(points) == (groups if every == 2 else math.ceil(242 / every))


def test_the_page_has_training_here_and_what_is_held_out_in_its_own_table():
    shown = environment().get_template("tasks.html").render(tasks=newest_tasks(ROUNDS))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", shown))
    assert "by task: round 2;" in text and "task guided free random a 2/2 100 %" in text
    assert "8/8" not in text and "2/8" not in text, "held-out episodes are counted in the table Held out"
    untrained = newest_tasks(ROUNDS[:1])
    assert untrained is not None and untrained.trained is None
    assert not environment().get_template("tasks.html").render(tasks=untrained).strip()


def test_a_run_of_one_task_shows_nothing_of_it():
    alone = [RoundSummary(1, "1", free=Rate(1, 4), tasks={"free": {"a": Rate(1, 4)}})]
    assert newest_tasks(alone) is None and newest_tasks([]) is None
    assert "Tasks" not in rounds_markdown("one", alone) and len(success_charts(alone)) == 2


def test_many_tasks_are_cut_and_the_average_is_of_all():
    rates = {f"t{number:03d}": Rate(number % 2, 1) for number in range(100)}
    tasks = newest_tasks([RoundSummary(1, "1", tasks={"free": rates})])
    assert tasks is not None
    rows = task_rows(tasks)
    assert len(rows) == 42 and rows[40]["task"] == "and 60 more" and rows[41]["free"] == "50 %"
