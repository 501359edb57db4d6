"""Do the events of a run explain its banks? Each is made again from events and operations alone and compared.

Rows may agree with the digest of a round and still not with its events: a change without an event, an event that names
the wrong operation. Replaying finds it; the round is named, and no later one, since what follows stands on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pyarrow as pa

from crl.bank.replay import replayed_digests
from crl.errors import RecordDamaged
from crl.recipes.banks import publishing_stage, tables_of
from crl.recipes.stage import Recipe
from crl.records import BankChange, BankEvent, BankSnapshot, Operation, Row, rows_of
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of
from crl.run.verify import Problem


def replay_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """The first round whose events do not come to its bank. Files that cannot be read are named by `verify` alone."""
    once = _Once(run)
    table_of = tables_of(recipe, run.method, once.read)
    readable = _readable(run, recipe, once)
    replayed = replayed_digests(readable, table_of, lambda number: _operations(run, recipe, number, once))
    try:
        for number, found in replayed:
            for summary in rows_of(BankSnapshot, table_of(BankSnapshot, number)):
                if summary.digest != found:
                    expected = f"events that come to the bank of digest {summary.digest}, as the round recorded"
                    return [_problem(run, recipe, number, expected, f"one of digest {found}")]
    except RecordDamaged as error:
        return [_problem(run, recipe, once.round, "events that fit the bank before them", str(error))]
    return []


class _Once:
    """Reads every table of a round once, and holds those of one round only."""

    def __init__(self, run: RunDirectory) -> None:
        self._run, self.round = run, 0
        self._held: dict[tuple[int, str, type[Row]], pa.Table] = {}

    def begin(self, round_number: int) -> None:
        """Go on to a round."""
        self.round = round_number
        self._held.clear()

    def read(self, round_number: int, stage: str, row_type: type[Row]) -> pa.Table:
        """As :meth:`RunDirectory.read`."""
        key = (round_number, stage, row_type)
        if key not in self._held:
            self._held[key] = self._run.read(*key)
        return self._held[key]


def _readable(run: RunDirectory, recipe: Recipe, once: _Once) -> Iterator[int]:
    """Rounds from the first, up to one that published no bank or whose rows cannot be read."""
    for number in run.rounds():
        once.begin(number)
        place = publishing_stage(recipe, run.method, number)
        if place is None or place[0] != number or not run.is_complete(*place):
            return
        try:
            for row_type in (BankEvent, BankSnapshot, BankChange):
                once.read(*place, row_type)
            _operations(run, recipe, number, once)
        except RecordDamaged:
            return
        yield number


def _operations(run: RunDirectory, recipe: Recipe, number: int, once: _Once) -> list[Operation]:
    places = [recipe.resolve(run.method, number, stage, 0) for stage in ("distill", "merge")]
    return [row for place in places if place is not None for row in rows_of(Operation, once.read(*place, Operation))]


def _problem(run: RunDirectory, recipe: Recipe, number: int, expected: str, found: str) -> Problem:
    place = publishing_stage(recipe, run.method, number)
    assert place is not None  # it was read
    key = key_of(*place)
    file = f"rounds/{key}/{BankEvent.table}.parquet"
    return Problem(file, place[1], place[0], expected, found, f"crl redo {shlex.quote(str(run.path))} --from {key}")
