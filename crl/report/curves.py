"""The charts of a run: which metrics of the rounds become lines and bars, and how long runs are pooled.

In every chart one color means with experience, another without: training and held-out success compare at a glance.
Clock times come from the manifests. A chart of playing without anything to show is left out: a run without a bank
retrieves nothing, one without search-and-ask answers nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from crl.report.charts import Bar, Chart, Line, Point, bar_chart, line_chart, over_steps
from crl.report.round_tables import newest_evaluated, newest_tasks
from crl.report.sections import Observed, sections_of
from crl.report.success import NONE, Rate, average
from crl.report.summary import RoundSummary, random_policy

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
    ("experiences that are right", True, (
        ("new", "experiences_true_new", 0), ("in the bank", "experiences_true", 2),
        ("shown", "experiences_true_used", 1),
    )),
    ("task families covered", True, (
        ("by an experience", "families_with_experience", 0), ("by a right one", "families_with_true_experience", 2),
    )),
    ("distinct texts among new experiences", True, (("distinct", "experiences_distinct", 0),)),
    ("rewards of the extractor's batch", True, (
        ("equal to most", "extractor_reward_equal", 0), ("at the minimum", "extractor_reward_at_minimum", 1),
    )),
    ("groups without an advantage", True, (("groups", "actor_groups_equal", 1),)),
    ("rounds from writing to training", False, (
        ("mean", "trained_age_mean", 0), ("oldest", "trained_age_max", 2), ("waiting longest", "buffer_oldest_wait", 1),
    )),
)  # fmt: skip
"""What the extractor writes, and what the updates learn from."""
FORM: tuple[Observed, ...] = (
    ("turns with a legal action", True, (("valid", "turns_valid", 0),)),
    ("cut off by the length limit", True, (("turns", "turns_cut", 1), ("extractor outputs", "outputs_cut", 0))),
)
"""Whether turns are in form."""
_TRAINING_ARMS = (("guided", "guided", 0), ("free", "free", 1), ("in the experience model", "synthetic", 2))
_HELD_OUT_ARMS = (("with bank", "with_bank", 0), ("without", "without_bank", 1))
_TOKENS = (
    ("actor read", "actor_tokens_read", 1), ("actor wrote", "actor_tokens_sampled", 3),
    ("extractor read", "extractor_tokens_read", 0), ("extractor wrote", "extractor_tokens_sampled", 2),
)  # fmt: skip
_PLACES = (("training", ("plan", "collect"), 2), ("held out", ("evaluate",), 3))
"""Where retrieval and answers happen: a name, its stages, its color."""
_RAMP = 10
"""First of the colors that grow stronger."""
_STAGES = 6
"""Stages with a color of their own; the rest are one."""
_WITH, _THIRD, _RANDOM = 0, 2, 4
_HELD_OUT = "success on held-out seeds"


def rounds_a_point(summaries: Sequence[RoundSummary]) -> int:
    """How many consecutive rounds one point stands for."""
    return max(1, math.ceil(len(summaries) / LIMIT))


def success_charts(summaries: Sequence[RoundSummary]) -> list[Chart]:
    """The success charts, with experience and without: in training, on held-out seeds (there the random policy as a
    level beside them where it was measured), and of a mixture the average over its tasks; where a run counts real steps
    (DreamGym), held-out success over these too."""

    def line(name: str, condition: str, color: int) -> Line:
        rates = [(group, sum((getattr(each, condition) for each in group), NONE)) for group in _pooled(summaries)]
        return Line(name, color, [_rate_point(group, rate) for group, rate in rates if rate.episodes])

    training = [
        line(*of) for of in _TRAINING_ARMS if of[1] != "synthetic" or any(each.synthetic.episodes for each in summaries)
    ]
    held_out = [line(*of) for of in _HELD_OUT_ARMS]
    random = random_policy(summaries)
    if random.episodes:
        evaluated = [group for group in _pooled(summaries) if any(each.without_bank.episodes for each in group)]
        level = [_rate_point(group, random) for group in evaluated]
        held_out.append(Line("random policy", _RANDOM, level, marked=False))
    lines = [*training, *held_out]
    values = [point.y if point.high is None else point.high for line in lines for point in line.points]
    top = min(1.0, max(0.2, 1.05 * max(values, default=1.0)))
    xs = [point.x for line in lines for point in line.points]
    span = (min(xs), max(xs)) if xs else None
    charts = [("success in training", training), (_HELD_OUT, held_out)]
    if newest_tasks(summaries) is not None:
        means = average_lines(list(filter(None, map(newest_evaluated, _pooled(summaries)))))
        charts += [("held-out success, average over tasks", means)] if any(line.points for line in means) else []
    found = [line_chart(title, drawn, top=top, share=True, rounds=span) for title, drawn in charts]
    steps = _real_steps(summaries)
    if any(steps.values()):
        found.append(over_steps(_HELD_OUT, held_out, [steps] * len(held_out), top=top))
    return found


def average_lines(summaries: Sequence[RoundSummary]) -> list[Line]:
    """The average over tasks in every round, held out: with the bank, and without."""
    lines = []
    for name, condition, color in _HELD_OUT_ARMS:
        points = []
        for each in summaries:
            mean = average(list(each.tasks.get(condition, {}).values()))
            if mean is not None:
                told = f"{mean.percent} ({mean.span} %)"
                points.append(Point(float(each.round), mean.mean, each.label, told, mean.low, mean.high))
        lines.append(Line(name, color, points))
    return lines


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
    size = round_line("entries", _THIRD, summaries, lambda each: each.bank)
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


def observed(metrics: Sequence[Observed], summaries: Sequence[RoundSummary]) -> list[Chart]:
    """Charts of metrics of the stage `health`, where they have anything to show: not every round has each."""
    charts = []
    for title, share, named in metrics:
        lines = [
            round_line(name, color, summaries, lambda each, metric=metric: each.health.get(metric))  # type: ignore[misc]
            for name, metric, color in named
        ]
        if any(line.points for line in lines):
            charts.append(line_chart(title, lines, top=1.0 if share else None, share=share))
    return charts


def play_charts(summaries: Sequence[RoundSummary]) -> list[Chart]:
    """Form, actions and tokens per game, seconds of retrieval, answers and games, with experience and without."""

    def costs(title: str, conditions: Sequence[tuple[str, str, int]], metric: str) -> Chart:
        def mean(condition: str, each: RoundSummary) -> float | None:
            cost = each.costs.get(condition)
            return None if cost is None else float(getattr(cost, metric) / cost.games)

        return line_chart(
            title,
            [round_line(name, color, summaries, partial(mean, condition)) for name, condition, color in conditions],
        )

    def waits(title: str, places: Iterable[tuple[str, Sequence[str], str, int]], factor: float = 1) -> Chart:
        """Seconds (times `factor`) of one item of a kind of work, over some stages of a round."""

        def mean(stages: Sequence[str], work: str, each: RoundSummary) -> float | None:
            found = [each.timings[stage, work] for stage in stages if (stage, work) in each.timings]
            items = sum(timing.items for timing in found)
            return factor * sum(timing.seconds for timing in found) / items if items else None

        lines = [round_line(name, color, summaries, partial(mean, *of)) for name, *of, color in places]  # type: ignore[arg-type]
        return line_chart(title, lines)

    def tokens(each: RoundSummary) -> list[float]:
        return [each.health.get(metric, 0.0) / 1000 for _, metric, _ in _TOKENS]

    kinds = [(name, color) for name, _, color in _TOKENS]
    charts = [
        *observed(FORM, summaries),
        costs("actions per game in training", _TRAINING_ARMS, "actions"),
        costs("actions per game, held out", _HELD_OUT_ARMS, "actions"),
        costs("tokens read per game in training", _TRAINING_ARMS, "tokens_read"),
        costs("tokens written per game in training", _TRAINING_ARMS, "tokens_sampled"),
        round_bars("thousand tokens per round", kinds, summaries, tokens, mean=True),
        waits(
            "milliseconds per query of the bank", [(name, at, "retrieval", color) for name, at, color in _PLACES], 1000
        ),
        waits("seconds per answer to a question", [(name, at, "answers", color) for name, at, color in _PLACES]),
        waits(
            "seconds per game, held out",
            [(name, ["evaluate"], f"play {condition}", c) for name, condition, c in _HELD_OUT_ARMS],
        ),
    ]
    return [chart for chart in charts if chart.rows]


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
    """A metric of the rounds as a line; of rounds that share a point, the mean. Rounds without it have no point."""
    points = []
    for group in _pooled(summaries):
        values = [value for each in group if (value := of(each)) is not None]
        if values:
            mean = sum(values) / len(values)
            points.append(Point(_middle(group), mean, _named(group), f"{mean:.4g}"))
    return Line(name, color, points)


def _rate_point(group: Sequence[RoundSummary], rate: Rate) -> Point:
    low, high = rate.interval or (None, None)
    return Point(_middle(group), rate.successes / rate.episodes, _named(group), rate.words, low, high)


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
