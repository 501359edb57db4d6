"""The round table against numbers counted by hand."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from crl.records import Metric
from crl.report.curves import health_charts, play_charts, success_charts
from crl.report.markdown import curve_markdown, rounds_markdown
from crl.report.page import render
from crl.report.round_tables import remarks, round_tables
from crl.report.success import Rate
from crl.report.summary import RoundSummary, summarize
from tests.unit.report.builder import build_run, evaluation, write_stage


def test_metrics_of_each_round(tmp_path: Path) -> None:
    base, start, first, second = summarize(build_run(tmp_path / "run"))
    assert (base.label, base.without_bank, base.bank) == ("0 base", Rate(0, 2), None)
    assert (start.label, start.without_bank, start.bank, start.updates["extractor"]) == ("0", Rate(1, 2), 0, 0)
    assert (first.guided, first.free) == (Rate(0, 0), Rate(1, 4))
    assert (first.bank, dict(first.operations), first.outputs, first.malformed) == (1, {"add": 1}, 2, 1)
    assert (first.updates, first.buffer) == ({"actor": 1, "extractor": 1}, None)
    assert (second.guided, second.free) == (Rate(1, 2), Rate(0, 2))
    assert (second.with_bank, second.without_bank) == (Rate(2, 2), Rate(0, 2))
    assert second.buffer == 1, "only what waits: a selected output is trained"
    assert second.alarms == ("more than 0.3 of the outputs (credit: share_malformed 0.5)",)
    assert sum(second.seconds.values()) == 10.5


def test_warm_start_episodes_do_not_count_as_a_round(tmp_path: Path) -> None:
    from tests.unit.report.builder import episode

    run = build_run(tmp_path / "run")
    write_stage(run, 0, "warm_start_actor", [[episode(0, 0, guided=False, success=True)]])
    assert all(each.free == Rate(0, 0) for each in summarize(run) if each.round == 0)


def printed(summaries: list[RoundSummary], width: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width)
    for table in round_tables(summaries):
        out.print(table)
    return [" ".join(line.split()) for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_tables_show_every_round_with_counts_and_intervals(tmp_path: Path) -> None:
    summaries = summarize(build_run(tmp_path / "run"))
    lines = printed(summaries, 80)
    assert "2 1/2 50 % 0/2 0 % 2/2 100 % [34–100] 0/2 0 % [0–66]" in lines, "one line a round, in 80 columns"
    assert "0 base – – – 0/2 0 % [0–66]" in lines and "2 – – 1 update 1 0/1 1 –/1" in lines
    assert any("preparation" in line for line in remarks(summaries))
    assert any("share_malformed" in line for line in remarks(summaries))


@pytest.mark.slow
@pytest.mark.usefixtures("plain_charts")
def test_the_random_policy_is_a_line_of_table_and_curve(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    without = summarize(run)
    for shown in ("\n".join(printed(without, 80)), rounds_markdown("run", without), render(run)):
        assert "random policy" not in shown and "random  " not in shown, "nothing is said of what was not measured"
    shutil.rmtree(run / "rounds/0000/evaluate")
    plays = [evaluation(0, "random", play, play % 4 == 0) for play in range(64)]
    write_stage(run, 0, "evaluate", [[evaluation(0, "without_bank", 1, True), *plays]])
    summaries = summarize(run)
    assert [each.random for each in summaries if each.random.episodes] == [Rate(16, 64)]
    assert [each.without_bank for each in summaries] == [Rate(0, 2), Rate(1, 1), Rate(0, 0), Rate(0, 2)]
    told = "16/64 25 % [16–37]"
    assert f"random – – – {told}" in printed(summaries, 80)
    for text in (rounds_markdown("run", summaries), curve_markdown("run", summaries)):
        assert told in text.replace("\u00a0", " ")
    page = render(run)
    assert "16/64 <small>25 % [16–37]</small>" in page and "16/64 (16–37 %)" in page
    _, held_out = success_charts(summaries)
    assert held_out.columns[-1] == "random policy"
    assert [row[-1] for row in held_out.rows] == [told] * 2, "a level over every evaluation"


def test_a_run_without_stages_has_no_table(tmp_path: Path) -> None:
    assert summarize(tmp_path) == []
    assert round_tables([]) == []


@pytest.mark.slow
def test_turns_that_are_no_moves_are_told_in_table_page_and_alarm(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    alarm = "fewer than 95% of the turns name a legal action"
    rows = [
        Metric(round=2, stage="health", name="turns_valid", value=0.5378, alarm=alarm),
        Metric(round=2, stage="health", name="turns_cut", value=0.0125, alarm=None),
    ]
    write_stage(run, 2, "health", [rows])
    summaries = summarize(run)
    assert "2 53.8 % 1.25 % 1 update 1 0/1 1 –/1" in printed(summaries, 80)
    assert f"alarm in round 2: {alarm} (health: turns_valid 0.538)" in remarks(summaries)
    assert "| 2 | 53.8 % | 1.25 % | 1 |" in rounds_markdown("run", summaries).replace("\u00a0", " ")
    page = render(run)
    assert "<td>53.8 %</td><td>1.25 %</td>" in page and alarm in page
    titles = [chart.title for chart in play_charts([each for each in summaries if each.label == str(each.round)])]
    assert {"turns with a legal action", "cut off by the length limit"} <= set(titles)


@pytest.mark.slow
def test_a_collapse_is_told_wherever_alarms_are(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    told = "this run has collapsed: the extractor writes no experiences, since round 1"
    metrics = {"experiences_true": 0.25, "share_add": 0.5, "families_with_experience": 1.0}
    rows = [Metric(round=2, stage="health", name=name, value=value, alarm=None) for name, value in metrics.items()]
    write_stage(run, 2, "health", [[*rows, Metric(round=2, stage="health", name="collapsed", value=1, alarm=told)]])
    summaries = summarize(run)
    assert dict(summaries[-1].health) == {**metrics, "collapsed": 1.0} and not summaries[-2].health
    assert f"alarm in round 2: {told} (health: collapsed 1)" in remarks(summaries)
    assert told in rounds_markdown("run", summaries)
    page = render(run)
    assert told in page
    titles = [chart.title for chart in health_charts([each for each in summaries if each.label == str(each.round)])]
    assert {"experiences that are right", "kinds of extractor outputs", "task families covered"} <= set(titles)
    assert "rewards of the extractor's batch" not in titles, "nothing was said about them"
    assert "experiences that are right: new" not in page and "in the bank 25 %" in page
