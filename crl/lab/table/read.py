"""The results of one run at one round, for a table: those of its stage `evaluate` and those of `crl evaluate`.

A task and a condition that were evaluated more than once in a round have the result of most episodes; of equally many
that of the stage, then that of the first evaluation by its name. Nothing is played and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from crl.config import Method
from crl.errors import BadInput, CrlError
from crl.paths import quoted
from crl.records import Evaluation, rows_of
from crl.report.state import unfinished
from crl.report.success import ConditionResult, averages, condition_results
from crl.rounds.evaluate import WITH_BANK, WITHOUT_BANK, best_of
from crl.run.directory import RunDirectory
from crl.run.evaluations import Kept, kept_evaluations
from crl.run.journal import Journal

EVALUATE = "evaluate"
CONDITIONS = (WITH_BANK, WITHOUT_BANK)
"""Conditions of a table, in their order. The random policy is of round 0 alone: a table leaves it out."""
Which = int | Literal["last", "best"]
"""Which round of a run: a number, the last one with an evaluation of every task and condition, or the one with the most
success; of a fork one of its own rounds, where one was evaluated."""


@dataclass(frozen=True)
class CellResult:
    """The result of one task in one condition of one run."""

    result: ConditionResult
    seeds: tuple[int, ...]
    """Held-out seeds that were played, in order."""
    kept: bool
    """Whether it is of `crl evaluate`; else of the run's own stage."""


Cells = Mapping[tuple[str, str], CellResult]
"""By task and condition."""


@dataclass(frozen=True)
class RunResults:
    """One run at one round."""

    name: str
    path: Path
    method: Method
    round: int
    cells: Cells
    footnotes: tuple[str, ...]
    """What of it could not be used, and whether it is unfinished."""

    @property
    def tasks(self) -> list[str]:
        """Names of the run's tasks, in its order."""
        return [family.name for family in self.method.families]

    @property
    def empty_bank(self) -> bool:
        """Whether its own evaluation played no task with the bank: it has none, or nothing is in it."""
        return not any(condition == WITH_BANK or found.kept for (_, condition), found in self.cells.items())

    def average(self, condition: str, tasks: Sequence[str]) -> ConditionResult | None:
        """The mean over tasks of a condition; None unless each of them has a result."""
        found = [self.cells[task, condition].result for task in tasks if (task, condition) in self.cells]
        return averages(found)[0] if found and len(found) == len(tasks) else None


def read_results(path: Path, which: Which) -> RunResults:
    """The results of a run. Raises BadInput where there are none to show, RecordDamaged, RunDirectoryUnusable."""
    run = RunDirectory.open(path)
    footnotes, kept = [], []
    for each in kept_evaluations(run):
        if isinstance(each, Kept):
            kept.append(each)
        else:
            footnotes.append(f"left out: {each.found}")
    numbers = sorted(
        {number for number in run.rounds() if run.is_complete(number, EVALUATE)} | {each.round for each in kept}
    )
    by_round = _Rounds(run, kept)
    number = _chosen(run, by_round, numbers, which)
    if (maker := run.lineage.maker(number, EVALUATE)) is not None:
        footnotes.append(f"round {number} is of {maker.experiment}, which it was forked from")
    if (missing := _missing(run)) is not None:
        footnotes.append(f"unfinished: {missing}")
    return RunResults(
        name=run.experiment_name,
        path=Path(path),
        method=run.method,
        round=number,
        cells=by_round.cells(number),
        footnotes=tuple(footnotes),
    )


def _missing(run: RunDirectory) -> str | None:
    try:
        return unfinished(run, Journal(run.path).read())
    except CrlError as error:  # what is evaluated is whole, whatever else is wrong
        return error.found


class _Rounds:
    """The cells of each round, read when they are asked for."""

    def __init__(self, run: RunDirectory, kept: Sequence[Kept]) -> None:
        self._run, self._kept = run, kept
        self._read: dict[int, Cells] = {}

    def cells(self, number: int) -> Cells:
        """Raises RecordDamaged."""
        if number not in self._read:
            batches = [(False, self._recorded(number))]
            batches += [(True, each.rows) for each in self._kept if each.round == number]
            self._read[number] = _most_episodes(batches)
        return self._read[number]

    def is_whole(self, number: int) -> bool:
        """Whether every task was evaluated in this round, with all conditions that the run's own newest evaluation
        has."""
        cells, conditions = self.cells(number), self._own_conditions
        if conditions:
            return all((task, condition) in cells for task in _tasks(self._run) for condition in conditions)
        return all(any((task, condition) in cells for condition in CONDITIONS) for task in _tasks(self._run))

    @cached_property
    def _own_conditions(self) -> set[str]:
        for number in reversed(self._run.rounds()):
            if rows := self._recorded(number):
                return {row.condition for row in rows} & set(CONDITIONS)
        return set()

    def success(self, number: int) -> float | None:
        """Success over all tasks, with the bank where it was played in each of them; None where neither condition
        was."""
        cells, tasks = self.cells(number), _tasks(self._run)
        for condition in CONDITIONS:
            found = [cells[task, condition].result.success.mean for task in tasks if (task, condition) in cells]
            if len(found) == len(tasks):
                return sum(found) / len(found)
        return None

    def _recorded(self, number: int) -> list[Evaluation]:
        if not self._run.is_complete(number, EVALUATE):
            return []
        return rows_of(Evaluation, self._run.read(number, EVALUATE, Evaluation))


def _tasks(run: RunDirectory) -> list[str]:
    return [family.name for family in run.method.families]


def _most_episodes(batches: Sequence[tuple[bool, Sequence[Evaluation]]]) -> Cells:
    cells: dict[tuple[str, str], CellResult] = {}
    for kept, rows in batches:
        for result in condition_results(rows):
            place = result.task, result.condition
            if result.condition in CONDITIONS and (
                place not in cells or result.episodes > cells[place].result.episodes
            ):
                seeds = {row.environment_seed for row in rows if (row.family, row.condition) == place}
                cells[place] = CellResult(result, tuple(sorted(seeds)), kept)
    return cells


def _chosen(run: RunDirectory, by_round: _Rounds, numbers: Sequence[int], which: Which) -> int:
    if not numbers:
        raise BadInput(
            "no round of it was evaluated",
            where=str(run.path),
            next_step=f"crl evaluate {quoted(run.path)}, then again",
        )
    if isinstance(which, int):
        if which not in numbers:
            raise BadInput(
                f"round {which} was not evaluated",
                expected=f"one of the rounds {', '.join(map(str, numbers))}",
                where=str(run.path),
                next_step=f"crl evaluate {quoted(run.path)} --round {which}, then again",
            )
        return which
    # What a fork begins with is a result of the run that it was forked from: only where there is nothing else.
    numbers = [number for number in numbers if run.lineage.maker(number, EVALUATE) is None] or numbers
    if which == "best":
        best = best_of({number: by_round.success(number) for number in numbers})
        if best is not None:
            return best
    return next((number for number in reversed(numbers) if by_round.is_whole(number)), numbers[-1])
