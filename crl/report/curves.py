"""The charts of a run: which figures of the rounds become lines and bars, and how long runs are pooled.

In every chart one color means with experience, another without: training and held-out success compare at a glance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from crl.report.charts import Bar, Chart, Line, Point, bar_chart, line_chart, over_steps
from crl.report.rates import NONE, Rate, wilson
from crl.report.sections import Observed, sections_of
from crl.report.summary import RoundSummary, random_policy
from crl.report.tasks import average_lines, newest_evaluated, newest_tasks

LIMIT = 120
"""Most points of a line, bars of a chart: a longer run has consecutive rounds pooled into one."""
OUTCOMES = (("add", 0), ("update", 2), ("merge", 3), ("drop", 1), ("return", 4), ("keep", 5), ("rejected", 7),
            ("malformed", 6))  # fmt: skip
"""What becomes of what the extractor asks for, with a color each; a malformed output asks for nothing."""
AGES = ((0, "this round"), (1, "1–3"), (4, "4–15"), (16, "16–63"), (64, "64+"))
"""Classes of age in rounds: smallest age, name."""
HEALTH: tuple[Observed, ...] = (
    ("kinds of extractor outputs", True, (
        ("add", "share_add", 0), ("update", "share_update", 2), ("return", "share_return", 4),
    )),
    ("notes that are right", True, (
        ("new", "notes_true_new", 0), ("in the bank", "notes_true", 2), ("shown", "notes_true_used", 1),
    )),
    ("task families covered", True, (
        ("by a note", "families_with_note", 0), ("by a right one", "families_with_true_note", 2),
    )),
    ("distinct texts among new notes", True, (("distinct", "notes_distinct", 0),)),
    ("rewards of the extractor's batch", True, (
        ("equal to most", "extractor_reward_equal", 0), ("at the minimum", "extractor_reward_at_minimum", 1),
    )),
    ("groups without an advantage", True, (("groups", "actor_groups_equal", 1),)),
    ("rounds from writing to training", False, (
        ("mean", "trained_age_mean", 0), ("oldest", "trained_age_max", 2), ("waiting longest", "buffer_oldest_wait", 1),
    )),
)  # fmt: skip
"""What the extractor writes, and what the updates learn from."""
_RAMP = 10
"""First of the colors that grow stronger."""
_STAGES = 6
"""Stages with a color of their own; the rest are one."""
_WITH, _WITHOUT, _THIRD, _RANDOM = 0, 1, 2, 4
_TRAINING, _HELD_OUT = "success in training", "success on held-out seeds"
_AVERAGE = "held-out success, average over tasks"


def rounds_a_point(summaries: Sequence[RoundSummary]) -> int:
    """How many consecutive rounds one point stands for."""
    return max(1, math.ceil(len(summaries) / LIMIT))


def success_lines(summaries: Sequence[RoundSummary]) -> tuple[list[Line], list[Line]]:
    """(training, held-out) success over rounds, with experience and without; held out, the random policy as a level
    beside them where it was measured."""

    def points(of: Callable[[RoundSummary], Rate]) -> list[Point]:
        rates = [(group, sum((of(each) for each in group), NONE)) for group in _pooled(summaries)]
        return [_rate_point(group, rate) for group, rate in rates if rate.episodes]

    training = [
        Line("guided", _WITH, points(lambda each: each.guided)),
        Line("free", _WITHOUT, points(lambda each: each.free)),
    ]
    dreamt = points(lambda each: each.synthetic)
    training += [Line("in the experience model", _THIRD, dreamt)] if dreamt else []
    held_out = [
        Line("with bank", _WITH, points(lambda each: each.with_bank)),
        Line("without", _WITHOUT, points(lambda each: each.without_bank)),
    ]
    random = random_policy(summaries)
    if random.episodes:
        evaluated = [group for group in _pooled(summaries) if any(each.without_bank.episodes for each in group)]
        level = [_rate_point(group, random) for group in evaluated]
        held_out.append(Line("random policy", _RANDOM, level, marked=False))
    return training, held_out


def success_charts(summaries: Sequence[RoundSummary]) -> list[Chart]:
    """The success charts: in training, on held-out seeds, and of a mixture the average over its tasks; where a run
    counts real steps, held-out success over these too."""
    training, held_out = success_lines(summaries)
    lines = [*training, *held_out]
    charts = [(_TRAINING, training), (_HELD_OUT, held_out)]
    if newest_tasks(summaries) is not None:
        charts.append((_AVERAGE, average_lines(list(filter(None, map(newest_evaluated, _pooled(summaries)))))))
    found = [
        line_chart(title, drawn, top=_top(lines), share=True, rounds=_span(lines))
        for title, drawn in charts
        if title != _AVERAGE or any(line.points for line in drawn)
    ]
    steps = _real_steps(summaries)
    if any(steps.values()):
        found.append(over_steps(_HELD_OUT, held_out, [steps] * len(held_out), top=_top(lines)))
    return found


def _real_steps(summaries: Sequence[RoundSummary]) -> dict[float, float]:
    """Real environment steps taken when a point's rounds were evaluated, by the place of the point; none in round 0."""
    found = {}
    for group in _pooled(summaries):
        totals = [
            each.health.get("real_steps_total", None if each.round else 0.0)
            for each in group
            if each.without_bank.episodes
        ]
        known = [total for total in totals if total is not None]
        if known:
            found[_middle(group)] = sum(known) / len(known)
    return found


def bank_charts(summaries: Sequence[RoundSummary]) -> list[Chart]:
    """Growth, what became of the extractor's operations, how old the bank is and how old what it lends."""
    size = round_line("entries", _THIRD, summaries, lambda each: _float(each.bank))
    mix = [(name, color) for name, color in OUTCOMES if name != "malformed"]
    rewritten = (("added", 0), ("rewritten", 2), ("removed", 1))
    used = round_line("used", _WITH, summaries, lambda each: each.health.get("used_age_mean"))
    whole = round_line("whole bank", _THIRD, summaries, lambda each: each.health.get("bank_age_mean"))
    ages = _entries_by_age(summaries)
    classes = [(name, _RAMP + place) for place, (_, name) in enumerate(AGES)]
    return [
        line_chart("entries in the bank", [size]),
        round_bars("entries that changed", rewritten, summaries, lambda each: (
            sum(each.arrived.values()), each.rewritten, sum(each.left.values())
        )),
        round_bars("what became of operations", OUTCOMES, summaries, lambda each: (
            *(each.changes.get(name, 0) for name, _ in mix), each.malformed
        )),
        round_bars("age of the entries", classes, summaries, lambda each: ages[each.round], newest=True),
        line_chart("mean age of texts, in rounds", [used, whole]),
    ]  # fmt: skip


def health_charts(summaries: Sequence[RoundSummary]) -> list[Chart]:
    """Those of the recipe; what the extractor writes and whether it is right, what the updates learn from, clipped
    tokens, the buffer."""
    malformed = round_line(
        "malformed", 6, summaries, lambda each: each.malformed / each.outputs if each.outputs else None
    )
    clipped = [
        round_line(f"{role}", color, summaries, lambda each, role=role: each.clipped.get(role))  # type: ignore[misc]
        for color, role in enumerate(dict.fromkeys(role for each in summaries for role in each.clipped))
    ]
    of_recipe = [chart for section in sections_of(summaries) for chart in section.charts]
    buffered = (("trained now", 0), ("waiting", _THIRD), ("dropped", 6))
    return [
        line_chart("malformed extractor outputs", [malformed], top=1.0, share=True),
        *observed((*of_recipe, *HEALTH), summaries),
        line_chart("tokens the objective clipped", clipped, share=True),
        round_bars("outputs in the training buffer", buffered, summaries, lambda each: (
            each.buffer_trained, each.buffer or 0, each.buffer_dropped
        )),
    ]  # fmt: skip


def observed(figures: Sequence[Observed], summaries: Sequence[RoundSummary]) -> list[Chart]:
    """Charts of figures of the stage `health`, where they have anything to show: not every round has each."""
    charts = []
    for title, share, named in figures:
        lines = [
            round_line(name, color, summaries, lambda each, figure=figure: each.health.get(figure))  # type: ignore[misc]
            for name, figure, color in named
        ]
        if any(line.points for line in lines):
            charts.append(line_chart(title, lines, top=1.0 if share else None, share=share))
    return charts


def seconds_chart(summaries: Sequence[RoundSummary]) -> Chart:
    """Seconds per round, by stage."""
    totals: dict[str, float] = {}
    for each in summaries:
        for stage, seconds in each.seconds.items():
            totals[stage] = totals.get(stage, 0.0) + seconds
    largest = sorted(totals, key=lambda stage: -totals[stage])[:_STAGES]
    named = [stage for stage in totals if stage in largest]
    kinds = [*((stage.replace("_", " "), place) for place, stage in enumerate(named)), ("others", 7)]

    def heights(each: RoundSummary) -> tuple[float, ...]:
        return (
            *(each.seconds.get(stage, 0.0) for stage in named),
            sum(taken for stage, taken in each.seconds.items() if stage not in named),
        )

    return round_bars("seconds per round", kinds, summaries, heights, mean=True)


def _entries_by_age(summaries: Sequence[RoundSummary]) -> dict[int, list[int]]:
    """Entries of the bank after each round, in each of :data:`AGES`."""
    found = {}
    ends = [*(start for start, _ in AGES[1:]), math.inf]
    born: Counter[int] = Counter()
    for each in summaries:
        born.update(each.arrived)
        born.subtract(each.left)
        ages = [(max(0, each.round - made), count) for made, count in born.items()]
        published = each.bank is not None
        found[each.round] = [
            sum(count for age, count in ages if start <= age < end) * published
            for (start, _), end in zip(AGES, ends, strict=True)
        ]
    return found


def round_bars(
    title: str,
    kinds: Sequence[tuple[str, int]],
    summaries: Sequence[RoundSummary],
    of: Callable[[RoundSummary], Sequence[float]],
    *,
    mean: bool = False,
    newest: bool = False,
) -> Chart:
    """Stacked bars over rounds. Rounds that share a bar are summed up; else their mean, or the newest of them."""
    bars = []
    for group in _pooled(summaries):
        heights = [of(each) for each in (group[-1:] if newest else group)]
        summed = [sum(column) for column in zip(*heights, strict=True)]
        bars.append(Bar(_middle(group), [each / len(group) for each in summed] if mean else summed, _named(group)))
    pooled = rounds_a_point(summaries)
    how = "the newest of" if newest else "mean of" if mean else "sum of"
    return bar_chart(title + (f", {how} {pooled} rounds" if pooled > 1 else ""), kinds, bars)


def round_line(
    name: str, color: int, summaries: Sequence[RoundSummary], of: Callable[[RoundSummary], float | None]
) -> Line:
    """A figure of the rounds as a line; of rounds that share a point, the mean. Rounds without it have no point."""
    points = []
    for group in _pooled(summaries):
        values = [value for each in group if (value := of(each)) is not None]
        if values:
            mean = sum(values) / len(values)
            points.append(Point(_middle(group), mean, _named(group), f"{mean:.4g}"))
    return Line(name, color, points)


def _rate_point(group: Sequence[RoundSummary], rate: Rate) -> Point:
    low, high = wilson(rate.successes, rate.episodes)
    return Point(_middle(group), rate.successes / rate.episodes, _named(group), rate.told, low, high)


def _pooled(summaries: Sequence[RoundSummary]) -> Iterator[Sequence[RoundSummary]]:
    # The base models were measured before round 0 began: they are no point of the curve.
    rounds = [each for each in summaries if each.label == str(each.round)]
    size = rounds_a_point(rounds)
    return (rounds[start : start + size] for start in range(0, len(rounds), size))


def _middle(group: Sequence[RoundSummary]) -> float:
    return (group[0].round + group[-1].round) / 2


def _named(group: Sequence[RoundSummary]) -> str:
    first, last = group[0].round, group[-1].round
    return f"{first}" if first == last else f"{first}–{last}"


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _span(lines: Sequence[Line]) -> tuple[float, float] | None:
    xs = [point.x for line in lines for point in line.points]
    return (min(xs), max(xs)) if xs else None


def _top(lines: Sequence[Line]) -> float:
    values = [point.high if point.high is not None else point.y for line in lines for point in line.points]
    return min(1.0, max(0.2, 1.05 * max(values, default=1.0)))
