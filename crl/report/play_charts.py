"""Charts of playing: whether turns are in form, what a game takes (actions, tokens), and how long one waits.

Clock times come from the manifests. A chart without anything to show is left out: a run without a bank retrieves
nothing, one without search-and-ask answers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crl.report.charts import Chart, Line, line_chart
from crl.report.curves import observed, round_bars, round_line
from crl.report.sections import Observed
from crl.report.summary import Cost, RoundSummary, Timing

FORM: tuple[Observed, ...] = (
    ("turns with a legal action", True, (("valid", "turns_valid", 0),)),
    ("cut off by the length limit", True, (("turns", "turns_cut", 1), ("extractor outputs", "outputs_cut", 0))),
)
"""Figures of the stage `health`."""
_TRAINING = (("guided", "guided", 0), ("free", "free", 1), ("in the experience model", "synthetic", 2))
_HELD_OUT = (("with bank", "with_bank", 0), ("without", "without_bank", 1))
_TOKENS = (
    ("actor read", "actor_tokens_read", 1), ("actor wrote", "actor_tokens_sampled", 3),
    ("extractor read", "extractor_tokens_read", 0), ("extractor wrote", "extractor_tokens_sampled", 2),
)  # fmt: skip
_PLACES = (("training", ("plan", "collect"), 2), ("held out", ("evaluate",), 3))
"""Where retrieval and answers happen: a name, its stages, its color."""


def play_charts(summaries: Sequence[RoundSummary]) -> list[Chart]:
    """Form, actions and tokens per game, seconds of retrieval, answers and games, with experience and without."""
    charts = [
        *observed(FORM, summaries),
        _costs("actions per game in training", _TRAINING, summaries, lambda cost: cost.actions),
        _costs("actions per game, held out", _HELD_OUT, summaries, lambda cost: cost.actions),
        _costs("tokens read per game in training", _TRAINING, summaries, lambda cost: cost.tokens_read),
        _costs("tokens written per game in training", _TRAINING, summaries, lambda cost: cost.tokens_sampled),
        _tokens(summaries),
        _times("milliseconds per query of the bank", "retrieval", 1000, summaries),
        _times("seconds per answer to a question", "answers", 1, summaries),
        _playing(summaries),
    ]
    return [chart for chart in charts if chart.rows]


def _tokens(summaries: Sequence[RoundSummary]) -> Chart:
    def heights(each: RoundSummary) -> list[float]:
        return [each.health.get(figure, 0.0) / 1000 for _, figure, _ in _TOKENS]

    kinds = [(name, color) for name, _, color in _TOKENS]
    return round_bars("thousand tokens per round", kinds, summaries, heights, mean=True)


def _playing(summaries: Sequence[RoundSummary]) -> Chart:
    lines = [
        round_line(name, color, summaries, _each(("evaluate",), f"play {arm}", 1)) for name, arm, color in _HELD_OUT
    ]
    return line_chart("seconds per game, held out", lines)


def _costs(
    title: str,
    arms: Sequence[tuple[str, str, int]],
    summaries: Sequence[RoundSummary],
    of: Callable[[Cost], int | None],
) -> Chart:
    def mean(arm: str) -> Callable[[RoundSummary], float | None]:
        def figure(each: RoundSummary) -> float | None:
            cost = each.costs.get(arm)
            total = None if cost is None else of(cost)
            return None if cost is None or total is None else total / cost.games

        return figure

    return line_chart(title, [round_line(name, color, summaries, mean(arm)) for name, arm, color in arms])


def _times(title: str, work: str, factor: float, summaries: Sequence[RoundSummary]) -> Chart:
    lines: list[Line] = [
        round_line(name, color, summaries, _each(stages, work, factor)) for name, stages, color in _PLACES
    ]
    return line_chart(title, lines)


def _each(stages: Sequence[str], work: str, factor: float) -> Callable[[RoundSummary], float | None]:
    """Seconds (times `factor`) of one item of a kind of work, over some stages of a round."""

    def figure(each: RoundSummary) -> float | None:
        found: list[Timing] = [each.timings[stage, work] for stage in stages if (stage, work) in each.timings]
        items = sum(timing.items for timing in found)
        return factor * sum(timing.seconds for timing in found) / items if items else None

    return figure
