"""What the live display says about events."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from crl.cli.progress import LiveProgress, progress_text
from crl.engine import events
from crl.report.cells import seconds_text


def test_progress_tells_rate_and_wins_of_all_episodes() -> None:
    """Two of sixteen games are over because they were won: that is no success rate of 1."""
    event = events.Progress(
        1, "collect", 2, 16, 25.0, {"turns": 35, "won": 2, "invalid_actions": 3}, working_seconds=10.0
    )
    assert progress_text(event) == "2 of 16, 3.5 turns/s, won 2 of 16, invalid actions 3"


def test_progress_without_metrics() -> None:
    assert progress_text(events.Progress(1, "plan", 0, 4, 0.0)) == "0 of 4"
    assert progress_text(events.Progress(1, "plan", 4, 4, 2.0)) == "4 of 4"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (59.4, "59 s"), (125, "2 min 05 s"), (3600, "1 h 00 min"), (4321, "1 h 12 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def shown(*listed: events.Event, terminal: bool = False, taken: dict[str, float] | None = None) -> str:
    out = Console(file=io.StringIO(), width=160, force_terminal=terminal, markup=False, highlight=False)
    ticks = iter(range(0, 10_000, 20))
    with LiveProgress(out, clock=lambda: float(next(ticks)), taken=taken) as live:
        for event in listed:
            live(event)
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


STORY = (
    events.RoundStarted(1, ("plan", "collect")),
    events.StageSkipped(1, "plan", "d"),
    events.StageStarted(1, "collect"),
    events.Progress(1, "collect", 1, 2, 5.0, {"turns": 10}, 5.0),
    events.StageErrored(1, "collect", {"type": "EngineDied", "found": "the engine was killed"}, True),
    events.RetryScheduled(1, "collect", 2, 5.0, "the engine was killed"),
    events.StageStarted(1, "collect", attempt=2),
    events.StageDone(1, "collect", "d", 12.0, {"episodes": 16, "turns": 80}),
    events.RoundDone(1, 13.0),
)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_round_with_a_retry_is_told_in_order(terminal: bool) -> None:
    text = shown(*STORY, terminal=terminal)
    parts = (
        "round 1: plan, collect",
        "the engine was killed",
        "attempt 2 in 5.0 s",
        "16 episodes, 80 turns",
        "1 stages",
    )
    assert [part in text for part in parts] == [True] * len(parts)
    assert sorted(parts, key=text.index) == list(parts)


def test_plain_output_has_lines_of_progress() -> None:
    assert "collect: 1 of 2, 2.0 turns/s\n" in shown(*STORY)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_stage_says_how_long_it_took_last_time(terminal: bool) -> None:
    """In the rounds that the run had before, or that were watched; of a first time nothing is known."""
    told = (events.StageStarted(2, "collect"), events.Progress(2, "collect", 1, 2, 5.0))
    assert "last time" not in shown(*told, terminal=terminal)
    watched = (events.StageStarted(1, "collect"), events.StageDone(1, "collect", "d", 75.0), *told)
    assert "collect: 1 of 2, 1 min 15 s last time" in shown(*watched) or terminal
    assert "1 min 15 s last time" in shown(*watched, terminal=terminal)
    assert "12 s last time" in shown(*told, terminal=terminal, taken={"collect": 12.0, "plan": 3.0})


def test_engine_lines_are_kept_for_errors_that_do_not_explain_themselves() -> None:
    start, line = events.StageStarted(1, "collect"), events.LogLine("ValueError: [x]")
    failed = events.StageErrored(1, "collect", {"type": "StageFailed", "found": "it broke"}, False)
    own = events.StageErrored(1, "collect", {"type": "BadInput", "found": "refused"}, False)
    assert "| ValueError: [x]" in shown(start, line, failed)
    assert "ValueError" not in shown(start, line, own)
    assert "ValueError" not in shown(start, line, start, failed), "lines of an earlier attempt are not repeated"


def test_a_further_draw_is_told_where_something_was_drawn() -> None:
    """`rollout.dynamic_sampling` lists them in every round; most rounds need none."""
    draws = ("plan", "collect", "plan_2", "collect_2", "plan_3", "collect_3", "distill")
    text = shown(
        events.RoundStarted(1, draws),
        events.StageDone(1, "collect", "d", 4.0, {"episodes": 64}),
        events.StageDone(1, "plan_2", "d", 0.1, {"retrieval_counts": 19, "tasks": 16}),
        events.StageDone(1, "collect_2", "d", 2.0, {"episodes": 16}),
        events.StageDone(1, "plan_3", "d", 0.1, {"retrieval_counts": 19, "tasks": 0}),
        events.StageDone(1, "collect_3", "d", 0.1, {"episodes": 0}),
        events.StageDone(1, "distill", "d", 9.0, {}),
    )
    assert "round 1: plan (up to 3 times), collect (up to 3 times), distill\n" in text
    names = [line[2:22].strip() for line in text.splitlines()[1:]]
    assert names == ["collect", "plan 2", "collect 2", "distill"]


def test_an_unknown_event_is_passed_over() -> None:
    assert shown(object()) == ""  # type: ignore[arg-type]
