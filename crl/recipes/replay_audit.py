"""Do the events of a run explain its banks? Each is made again from events and operations alone and compared.

Rows may agree with the digest of a round and still not with its events: a change without an event, an event that names
the wrong operation. Replaying finds it; the round is named, and no later one, since what follows stands on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from crl.bank.replay import replayed_digests
from crl.errors import RecordDamaged
from crl.recipes.banks import publishing_stage, tables_of
from crl.recipes.stage import Recipe
from crl.records import BankChange, BankEvent, BankSnapshot, Operation, rows_of
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of
from crl.run.verify import Problem


def replay_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """The first round whose events do not come to its bank. Files that cannot be read are named by `verify` alone."""
    table_of = tables_of(recipe, run.method, run.read)
    rounds = list(_readable(run, recipe))
    replayed = replayed_digests(rounds, table_of, lambda number: _operations(run, recipe, number))
    for number in rounds:
        try:
            _, found = next(replayed)
        except RecordDamaged as error:
            return [_problem(run, recipe, number, "events that fit the bank before them", str(error))]
        for summary in rows_of(BankSnapshot, table_of(BankSnapshot, number)):
            if summary.digest != found:
                expected = f"events that come to the bank of digest {summary.digest}, as the round recorded"
                return [_problem(run, recipe, number, expected, f"one of digest {found}")]
    return []


def _readable(run: RunDirectory, recipe: Recipe) -> Iterator[int]:
    """Rounds from the first, up to one that published no bank or whose rows cannot be read."""
    for number in run.rounds():
        place = publishing_stage(recipe, run.method, number)
        if place is None or place[0] != number or not run.is_complete(*place):
            return
        try:
            for row_type in (BankEvent, BankSnapshot, BankChange):
                run.read(*place, row_type)
            _operations(run, recipe, number)
        except RecordDamaged:
            return
        yield number


def _operations(run: RunDirectory, recipe: Recipe, number: int) -> list[Operation]:
    places = [recipe.resolve(run.method, number, stage, 0) for stage in ("distill", "merge")]
    return [row for place in places if place is not None for row in rows_of(Operation, run.read(*place, Operation))]


def _problem(run: RunDirectory, recipe: Recipe, number: int, expected: str, found: str) -> Problem:
    place = publishing_stage(recipe, run.method, number)
    assert place is not None  # it was read
    key = key_of(*place)
    file = f"rounds/{key}/{BankEvent.table}.parquet"
    return Problem(file, place[1], place[0], expected, found, f"crl redo {shlex.quote(str(run.path))} --from {key}")
