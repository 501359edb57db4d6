"""From the results of runs to a table: rows are methods with and without their bank, columns are tasks.

Of one run success has Wilson's interval, and the average over tasks the one made of these (`crl/report/success.py`). Of
several runs every metric is the mean over runs with Student's t over seeds, as a study has it.

Two runs are seeds of one method where their methods are equal but for the seed: `method.seed`, and whatever else takes
its value in each of them (a study gives an environment's `world` the seed too). Whoever names a row says so themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crl.config import Method
from crl.lab.study.statistics import interval
from crl.lab.table.read import CONDITIONS, CellResult, RunResults, Which
from crl.report.success import ConditionResult
from crl.rounds.evaluate import WITHOUT_BANK


class TableMetric(StrEnum):
    """What a table is about."""

    success = "success"
    score = "score"
    actions = "actions"
    tokens = "tokens"


@dataclass(frozen=True)
class Value:
    """A mean, and its 95 % interval where there is one."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Cell:
    """A method in one condition on one task, or on average over the tasks."""

    metrics: dict[TableMetric, Value]
    runs: int
    episodes: int
    """Of all its runs."""


@dataclass(frozen=True)
class Row:
    """A method in one condition."""

    label: str
    condition: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]
    """Of each run."""
    cells: dict[str, Cell]
    """By task; one without a result is left out."""
    average: Cell | None
    """None where a task of the table is missing, and in a table of one task."""

    @property
    def round_words(self) -> str:
        """`40`, or `36–40` of several."""
        low, high = min(self.rounds), max(self.rounds)
        return str(low) if low == high else f"{low}–{high}"


@dataclass(frozen=True)
class Table:
    """Rows, columns, and what has to be said about them."""

    tasks: tuple[str, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...]


def build(groups: Sequence[Group], which: Which, problems: Sequence[str] = ()) -> Table:
    """The table of some groups of runs. `problems` (runs that could not be read) are among its footnotes. Pure."""
    tasks = tuple(dict.fromkeys(task for group in groups for run in group.runs for task in run.tasks))
    rows = tuple(row for group in groups for row in _rows(group, tasks))
    return Table(tasks, rows, tuple(_notes(groups, tasks, which, problems)))


def _rows(group: Group, tasks: Sequence[str]) -> Iterator[Row]:
    for condition in CONDITIONS:
        if not any((task, condition) in run.cells for run in group.runs for task in tasks):
            continue
        # To leave out a run whose bank is still empty would be to choose seeds by what came of them.
        played = [(run, WITHOUT_BANK if run.empty_bank else condition) for run in group.runs]
        mine = [(run, own) for run, own in played if any((task, own) in run.cells for task in tasks)]
        cells = {}
        for task in tasks:
            found = [run.cells[task, own].result for run, own in mine if (task, own) in run.cells]
            if found:
                cells[task] = _cell(found)
        whole = [result for run, own in mine if (result := run.average(own, tasks)) is not None]
        yield Row(
            label=group.label,
            condition=condition,
            runs=tuple(run.name for run, _ in mine),
            seeds=tuple(run.method.seed for run, _ in mine),
            rounds=tuple(run.round for run, _ in mine),
            cells=cells,
            average=_cell(whole) if whole and len(tasks) > 1 else None,
        )


def _cell(found: Sequence[ConditionResult]) -> Cell:
    metrics = {}
    for metric in TableMetric:
        if len(found) > 1:
            over_seeds = interval([result.metrics()[metric] for result in found])
            metrics[metric] = Value(over_seeds.mean, over_seeds.low, over_seeds.high)
        elif metric is TableMetric.success:
            success = found[0].success
            metrics[metric] = Value(success.mean, success.low, success.high)
        else:
            metrics[metric] = Value(found[0].metrics()[metric])
    return Cell(metrics, len(found), sum(result.episodes for result in found))


def _notes(groups: Sequence[Group], tasks: Sequence[str], which: Which, problems: Sequence[str]) -> Iterator[str]:
    yield from problems
    for group in groups:
        for run in group.runs:
            yield from (f"{run.name}: {note}" for note in run.footnotes)
            if broken := sum(found.result.broken for found in run.cells.values()):
                yield f"{run.name}: {broken} games broke in round {run.round}, and count as lost"
        yield from _repeated(group)
        yield from _empty(group)
        yield from _missing(group, tasks)
    for task in tasks:
        yield from _splits(groups, task)
        yield from _environments(groups, task)
    yield from _from_command(groups)
    if which == "best":
        yield "the best round of each run was chosen by these very episodes: its success is an optimistic metric"


def _repeated(group: Group) -> Iterator[str]:
    seeds = [run.method.seed for run in group.runs]
    again = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if again:
        listed = ", ".join(map(str, again))
        yield f"{group.label}: several runs have seed {listed}; the interval takes them for independent"


def _empty(group: Group) -> Iterator[str]:
    empty = [run for run in group.runs if run.empty_bank]
    if len(empty) < len(group.runs):
        yield from (f"{run.name}: its bank is empty in round {run.round}; with bank is without it" for run in empty)


def _missing(group: Group, tasks: Sequence[str]) -> Iterator[str]:
    for run in group.runs:
        lacking = [task for task in tasks if not any((task, condition) in run.cells for condition in CONDITIONS)]
        own, other = (
            [each for each in lacking if each in run.tasks],
            [each for each in lacking if each not in run.tasks],
        )
        if own:
            yield f"{run.name}: not evaluated in round {run.round}: {', '.join(own)}"
        if other:
            yield f"{run.name}: has no task {', '.join(other)}"
        conditions = [condition for condition in CONDITIONS if any((task, condition) in run.cells for task in tasks)]
        for condition in conditions:
            half = [task for task in run.tasks if (task, condition) not in run.cells and task not in lacking]
            if half:
                yield f"{run.name}: not evaluated {condition.replace('_', ' ')} in round {run.round}: {', '.join(half)}"


def _found(groups: Sequence[Group], task: str) -> Iterator[tuple[RunResults, str, CellResult]]:
    for group in groups:
        for run in group.runs:
            for condition in CONDITIONS:
                if (task, condition) in run.cells:
                    yield run, condition, run.cells[task, condition]


def _splits(groups: Sequence[Group], task: str) -> Iterator[str]:
    """Results on different held-out seeds are no comparison of like with like."""
    played: dict[tuple[int, ...], list[str]] = {}
    for run, condition, found in _found(groups, task):
        played.setdefault(found.seeds, []).append(f"{run.name} {condition.replace('_', ' ')}")
    if len(played) > 1:
        told = "; ".join(f"{_span(seeds)} in {_some(names)}" for seeds, names in played.items())
        yield f"{task}: held-out seeds differ: {told}"


def _environments(groups: Sequence[Group], task: str) -> Iterator[str]:
    """One name may stand for different tasks."""
    kinds: list[tuple[object, int, list[str]]] = []
    for group in groups:
        run = next((run for run in group.runs if task in run.tasks), None)
        if run is None:
            continue
        family = next(family for family in run.method.families if family.name == task)
        settings, seed = family.environment.model_dump(mode="json"), run.method.seed
        for other, other_seed, labels in kinds:
            if equal_but_seed(settings, other, seed, other_seed):
                labels.append(group.label)
                break
        else:
            kinds.append((settings, seed, [group.label]))
    if len(kinds) > 1:
        yield f"{task}: its environment has other settings in " + " than in ".join(_some(names) for *_, names in kinds)


def _from_command(groups: Sequence[Group]) -> Iterator[str]:
    names = [run.name for group in groups for run in group.runs if any(found.kept for found in run.cells.values())]
    if names:
        yield f"with results of `crl evaluate`: {_some(names)}"


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]}–{seeds[-1]} ({len(seeds)})"


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = list(dict.fromkeys(names))
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


@dataclass(frozen=True)
class Group:
    """The runs of one row."""

    label: str
    runs: tuple[RunResults, ...]


def grouped(runs: Sequence[tuple[str | None, RunResults]]) -> list[Group]:
    """Rows in the order of their first runs, from (name of the row or None, run)."""
    rows: list[tuple[str | None, list[RunResults]]] = []
    for label, run in runs:
        for other, members in rows:
            alike = label is None and all(same_but_seed(run.method, each.method) for each in members)
            if other == label and (label is not None or alike):
                members.append(run)
                break
        else:
            rows.append((label, [run]))
    return _told_apart([Group(label or _label(members), tuple(members)) for label, members in rows])


def same_but_seed(one: Method, other: Method) -> bool:
    """Whether two methods differ in their seeds and in nothing else: in `seed`, and in what has its value in an
    environment. Equal seeds are no two seeds."""
    if one.seed == other.seed:
        return False
    mine, theirs = (each.model_dump(mode="json", exclude={"seed"}) for each in (one, other))
    my_worlds, their_worlds = ([family.pop("environment") for family in each["families"]] for each in (mine, theirs))
    return mine == theirs and equal_but_seed(my_worlds, their_worlds, one.seed, other.seed)


def equal_but_seed(one: Any, other: Any, seed: int, other_seed: int) -> bool:
    """Whether two values of JSON are equal, where a number may also be the seed of its own side."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal_but_seed(one[key], other[key], seed, other_seed) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            equal_but_seed(mine, theirs, seed, other_seed) for mine, theirs in zip(one, other, strict=True)
        )
    if type(one) is not type(other):
        return False
    return bool(one == other) or (type(one) is int and (one, other) == (seed, other_seed))


def _label(runs: Sequence[RunResults]) -> str:
    """The name of the run; of several the name without its seed: `study-baseline` of `study-baseline-s101`."""
    if len(runs) == 1:
        return runs[0].name
    stems = {re.sub(rf"[-_]?s?{run.method.seed}$", "", run.name) for run in runs}
    stem = stems.pop()
    return stem if stem and not stems else f"{runs[0].name} and {len(runs) - 1} more"


def _told_apart(groups: Sequence[Group]) -> list[Group]:
    """Rows that would have one name are called by where their first run is."""
    labels = [group.label for group in groups]
    return [Group(str(group.runs[0].path), group.runs) if labels.count(group.label) > 1 else group for group in groups]
