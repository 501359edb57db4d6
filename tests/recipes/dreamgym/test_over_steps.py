"""A run's held-out success over real environment steps: the chart and the documented query, against counted rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.records import Episode, Evaluation, Turn
from crl.report.charts import Line, Point, over_steps
from crl.report.curves import success_charts
from crl.report.success import Rate
from crl.report.summary import RoundSummary, summarize
from crl.report.views import query
from tests.recipes.dreamgym import dreamgym_played

ROUNDS = 3
PAGE = (Path(__file__).parents[3] / "docs" / "sql.md").read_text(encoding="utf-8")
(SQL,) = (block for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) if "real_steps" in block)


@pytest.mark.slow
def test_a_run_in_an_experience_model_has_its_success_over_real_steps(tmp_path: Path) -> None:
    played = dreamgym_played.played(tmp_path, ROUNDS)
    steps, points = 0, []
    for number in range(ROUNDS + 1):
        for stage in ("explore", "collect") if number else ():
            real = {row.episode_id for row in played.rows(Episode, stage, number) if row.stream != "synthetic"}
            steps += sum(turn.episode_id in real for turn in played.rows(Turn, stage, number))
        ended = [row.success for row in played.rows(Evaluation, "evaluate", number) if row.condition == "without_bank"]
        if ended:
            points.append((number, steps, sum(ended), len(ended)))
    assert len(points) > 2 and points[0][1] == 0 < points[1][1] < points[-1][1]

    columns, rows = query(played.run.path, SQL)
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(row["round"], row["real_steps"]) for row in found if row["condition"] == "without_bank"] == [
        (number, taken) for number, taken, *_ in points
    ]
    assert [row["success"] for row in found if row["condition"] == "without_bank"] == pytest.approx(
        [won / games for *_, won, games in points]
    )
    trained = [each for each in summarize(played.run.path) if each.label == str(each.round)]
    chart = success_charts(trained)[-1]
    assert chart.title == "success on held-out seeds, over real steps" and chart.columns[:2] == ["round", "without"]
    for row, (number, taken, won, games) in zip(chart.rows, points, strict=True):
        assert row[0] == str(number)
        assert row[1].startswith(f"{won}/{games} ") and row[1].endswith(f" at {taken:,}"), row
    assert "real environment steps" in chart.svg


def test_rounds_that_share_a_point_are_at_the_mean_of_their_steps() -> None:
    """Of 240 rounds two share a point each; every round takes 10 steps and is evaluated."""
    rounds = [
        RoundSummary(n, str(n), without_bank=Rate(n % 2, 1), health={"real_steps_total": 10.0 * n}) for n in range(240)
    ]
    chart = success_charts(rounds)[-1]
    assert chart.rows[3][0] == "6–7" and chart.rows[3][1].startswith("1/2 ") and chart.rows[3][1].endswith(" at 65")
    unknown = [RoundSummary(n, str(n), without_bank=Rate(1, 2)) for n in range(3)]
    assert not [each for each in success_charts(unknown) if "over" in each.title], "no recipe that counts real steps"


def test_two_rounds_without_a_step_between_them_are_two_points() -> None:
    line = Line("one", 0, [Point(n, y, str(n), f"{y}") for n, y in ((0, 0.1), (5, 0.2), (10, 0.4), (15, 0.5))])
    other = Line("other", 1, [Point(5, 0.3, "5", "0.3")])
    chart = over_steps("success", [line, other], [{0: 0, 5: 12_000, 10: 12_000}, {5: 7_000.4}])
    assert chart.columns == ["round", "one", "other"]
    assert chart.rows == [
        ["0", "0.1 at 0", "–"],
        ["5", "0.2 at 12,000", "0.3 at 7,000"],
        ["10", "0.4 at 12,000", "–"],
    ], "what was not counted has no place"
    assert "round 10: one 0.4 at 12,000" in chart.svg and ">12k<" in chart.svg
    xs = [re.findall(r"[\d.]+", path)[::2] for path in re.findall(r'class="line"><path d="([^"]+)"', chart.svg)]
    assert xs[0][1] == xs[0][2] != xs[0][0], "one above the other"
