"""The charts of a run: which figures of the rounds become lines and bars, and how long runs are pooled.

In every chart one colour means with experience, another without: training and held-out success compare at a glance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from crl.report.charts import Bar, Line, Point, bar_chart, line_chart, nice_top, picture
from crl.report.summary import Rate, RoundSummary

LIMIT = 120
"""Most points of a line, bars of a chart: a longer run has consecutive rounds pooled into one."""
OPERATIONS = (("add", 0), ("update", 2), ("merge", 3), ("drop", 1), ("return", 4), ("keep", 5))
_WITH, _WITHOUT, _THIRD = 0, 1, 2
_Z = 1.96
_TRAINING, _HELD_OUT = "success in training", "success on held-out seeds"


def wilson(rate: Rate) -> tuple[float, float]:
    """The 95 % interval of a success rate (Wilson 1927): honest for few episodes and for rates near 0 and 1."""
    n, share = rate.episodes, rate.successes / rate.episodes
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def rounds_a_point(summaries: Sequence[RoundSummary]) -> int:
    """How many consecutive rounds one point stands for."""
    return max(1, math.ceil(len(summaries) / LIMIT))


def success_lines(summaries: Sequence[RoundSummary]) -> tuple[list[Line], list[Line]]:
    """(training, held-out) success over rounds, with experience and without."""

    def line(name: str, colour: int, of: Callable[[RoundSummary], Rate]) -> Line:
        points = []
        for group in _pooled(summaries):
            rates = [of(each) for each in group]
            rate = Rate(sum(each.successes for each in rates), sum(each.episodes for each in rates))
            if rate.value is not None:
                points.append(Point(_middle(group), rate.value, *wilson(rate), told=f"{_named(group)}: {name} {rate}"))
        return Line(name, colour, points)

    training = [line("guided", _WITH, lambda each: each.guided), line("free", _WITHOUT, lambda each: each.free)]
    held_out = [
        line("with bank", _WITH, lambda each: each.with_bank),
        line("without", _WITHOUT, lambda each: each.without_bank),
    ]
    return training, held_out


def learning_curve(summaries: Sequence[RoundSummary]) -> list[tuple[str, str]]:
    """The two success charts as pictures that stand alone: (title, SVG)."""
    training, held_out = success_lines(summaries)
    lines = [*training, *held_out]
    return [
        (title, picture(title, drawn, top=_top(lines), share=True, rounds=_span(lines)))
        for title, drawn in ((_TRAINING, training), (_HELD_OUT, held_out))
    ]


def success_charts(summaries: Sequence[RoundSummary]) -> list[str]:
    """The two success charts, for a page."""
    training, held_out = success_lines(summaries)
    lines = [*training, *held_out]
    return [
        line_chart(title, drawn, top=_top(lines), share=True, rounds=_span(lines))
        for title, drawn in ((_TRAINING, training), (_HELD_OUT, held_out))
    ]


def bank_charts(summaries: Sequence[RoundSummary]) -> list[str]:
    """Entries in the bank, and what the extractor asked for."""
    bars = []
    for group in _pooled(summaries):
        heights = [sum(each.operations.get(kind, 0) for each in group) for kind, _ in OPERATIONS]
        told = ", ".join(f"{kind} {count}" for (kind, _), count in zip(OPERATIONS, heights, strict=True) if count)
        bars.append(Bar(_middle(group), heights, f"{_named(group)}: {told or 'none'}"))
    pooled = rounds_a_point(summaries)
    title = "operations asked for" + (f", {pooled} rounds a bar" if pooled > 1 else "")
    size = _line("entries", _THIRD, summaries, lambda each: None if each.bank is None else float(each.bank))
    return [line_chart("entries in the bank", [size], count=True), bar_chart(title, OPERATIONS, bars)]


def health_charts(summaries: Sequence[RoundSummary]) -> list[str]:
    """Malformed outputs, clipped tokens, the buffer."""
    malformed = _line("malformed", 3, summaries, lambda each: each.malformed / each.outputs if each.outputs else None)
    clipped = [
        _line(f"{role}", colour, summaries, lambda each, role=role: each.clipped.get(role))  # type: ignore[misc]
        for role, colour in (("extractor", 0), ("actor", 1))
    ]
    waiting = _line("waiting", _THIRD, summaries, lambda each: None if each.buffer is None else float(each.buffer))
    return [
        line_chart("malformed extractor outputs", [malformed], top=1.0, share=True),
        line_chart("tokens the objective clipped", clipped, share=True),
        line_chart("outputs waiting to be trained", [waiting], count=True),
    ]


def seconds_chart(summaries: Sequence[RoundSummary]) -> str:
    """Seconds a round."""
    line = _line("all stages", _THIRD, summaries, lambda each: sum(each.seconds.values()) if each.seconds else None)
    return line_chart("seconds a round", [line])


def _line(
    name: str, colour: int, summaries: Sequence[RoundSummary], of: Callable[[RoundSummary], float | None]
) -> Line:
    points = []
    for group in _pooled(summaries):
        values = [value for each in group if (value := of(each)) is not None]
        if values:
            mean = sum(values) / len(values)
            points.append(Point(_middle(group), mean, told=f"{_named(group)}: {name} {mean:.4g}"))
    return Line(name, colour, points)


def _pooled(summaries: Sequence[RoundSummary]) -> Iterator[Sequence[RoundSummary]]:
    # The base models were measured before round 0 began: they are no point of the curve.
    rounds = [each for each in summaries if each.label == str(each.round)]
    size = rounds_a_point(rounds)
    return (rounds[start : start + size] for start in range(0, len(rounds), size))


def _middle(group: Sequence[RoundSummary]) -> float:
    return (group[0].round + group[-1].round) / 2


def _named(group: Sequence[RoundSummary]) -> str:
    first, last = group[0].round, group[-1].round
    return f"round {first}" if first == last else f"rounds {first}–{last}"


def _span(lines: Sequence[Line]) -> tuple[float, float] | None:
    xs = [point.x for line in lines for point in line.points]
    return (min(xs), max(xs)) if xs else None


def _top(lines: Sequence[Line]) -> float:
    values = [point.high if point.high is not None else point.y for line in lines for point in line.points]
    return min(1.0, max(0.2, nice_top(max(values, default=1.0))))
