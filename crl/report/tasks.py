"""A mixture of tasks: success by task, and the average over tasks with equal weight, of the newest round that has any.

Where all episodes are pooled, a task with many of them hides the others: the average over tasks (macro) does not. A run
of one task has nothing to show here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from crl.report.charts import Line, Point
from crl.report.rates import NONE, NOTHING, Average, Rate, average
from crl.report.summary import RoundSummary

AVERAGE = "average"
"""Name of the last row. A task of this name would only be listed above it."""
MOST = 40
"""Tasks listed; the average is over all of them."""
_TRAINING = {"guided": "guided", "free": "free", "synthetic": "in the model"}
"""Arms of training, with their columns."""
_HELD_OUT = ("with_bank", "without_bank")


@dataclass(frozen=True, slots=True)
class Tasks:
    """Success by task."""

    trained: str | None
    """Label of the round that the columns of training are of; None: nothing was played yet."""
    evaluated: str | None
    """Likewise, of the held-out columns."""
    rates: Mapping[str, Mapping[str, Rate]]
    """By arm and task; `random` is of round 0."""

    @property
    def names(self) -> list[str]:
        """The tasks, sorted."""
        return sorted({name for of_task in self.rates.values() for name in of_task})

    @property
    def place(self) -> str:
        """Which rounds are shown: `round 7`, or `round 7, held out round 5`."""
        rounds = [each for each in (self.trained, self.evaluated) if each is not None]
        return f"round {rounds[0]}" + (f", held out round {rounds[1]}" if len(set(rounds)) > 1 else "")

    def rate(self, arm: str, task: str) -> Rate:
        """Success of one arm on a task."""
        return self.rates.get(arm, {}).get(task, NONE)

    def average(self, arm: str) -> Average | None:
        """Mean over the tasks; None where some task has no episode of this arm."""
        return average([self.rate(arm, name) for name in self.names])


def newest_tasks(summaries: Sequence[RoundSummary]) -> Tasks | None:
    """The newest figures of every task; None where there is one task only, or none."""
    trained = _newest(summaries, _TRAINING)
    evaluated = _newest(summaries, _HELD_OUT)
    rates: dict[str, Mapping[str, Rate]] = {}
    for summary, arms in ((trained, _TRAINING), (evaluated, _HELD_OUT), (_newest(summaries, ("random",)), ("random",))):
        rates |= {arm: summary.tasks[arm] for arm in arms if summary is not None and arm in summary.tasks}
    labels = [None if summary is None else summary.label for summary in (trained, evaluated)]
    found = Tasks(labels[0], labels[1], rates)
    return found if len(found.names) > 1 else None


def task_rows(tasks: Tasks) -> list[dict[str, str]]:
    """A row per task and the average, as words; a column for an experience model where episodes were played in one."""
    trained = [arm for arm in _TRAINING if arm != "synthetic" or arm in tasks.rates]
    rows = [
        {
            "task": name,
            **{_TRAINING[arm]: tasks.rate(arm, name).short for arm in trained},
            "held out, with bank": tasks.rate("with_bank", name).told,
            "without bank": tasks.rate("without_bank", name).told,
        }
        for name in tasks.names[:MOST]
    ]
    if len(tasks.names) > MOST:
        rows.append(dict.fromkeys(rows[0], "") | {"task": f"and {len(tasks.names) - MOST} more"})
    means = {arm: tasks.average(arm) for arm in (*trained, *_HELD_OUT)}
    words = [*(_percent(means[arm]) for arm in trained), *(_told(means[arm]) for arm in _HELD_OUT)]
    return [*rows, dict(zip(rows[0], (AVERAGE, *words), strict=True))]


def average_lines(summaries: Sequence[RoundSummary]) -> list[Line]:
    """The average over tasks in every round, held out: with the bank, and without."""
    lines = []
    for color, (arm, name) in enumerate(zip(_HELD_OUT, ("with bank", "without"), strict=True)):
        points = []
        for each in summaries:
            mean = average(list(each.tasks.get(arm, {}).values()))
            if mean is not None:
                told = f"{mean.percent} ({mean.span} %)"
                points.append(Point(float(each.round), mean.mean, each.label, told, mean.low, mean.high))
        lines.append(Line(name, color, points))
    return lines


def newest_evaluated(summaries: Sequence[RoundSummary]) -> RoundSummary | None:
    """The last round with held-out games of some task."""
    return _newest(summaries, _HELD_OUT)


def _newest(summaries: Sequence[RoundSummary], arms: Collection[str]) -> RoundSummary | None:
    return next((each for each in reversed(summaries) if any(arm in each.tasks for arm in arms)), None)


def _percent(mean: Average | None) -> str:
    return NOTHING if mean is None else mean.percent


def _told(mean: Average | None) -> str:
    return NOTHING if mean is None else f"{mean.percent} [{mean.span}]"
