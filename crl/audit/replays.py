"""Do the events of a run explain its banks? Each is made again from events and operations alone and compared.

Rows may agree with the digest of a round and still not with its events: a change without an event, an event that names
the wrong operation. Replaying finds it; the round is named, and no later one, since what follows builds on it.
"""

from __future__ import annotations

from crl.bank.changes import summary_of
from crl.bank.replay import Replayed, replayed_bank
from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.records import BankChange, BankEvent, Operation, Row, rows_of
from crl.rounds.recipe import publishing_stage, tables_of
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of
from crl.run.verify import Problem


def replay_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """The first round whose events do not result in its bank. Files that cannot be read are named by `verify` alone."""
    table_of = tables_of(recipe, run.method, run.read)
    bank: Replayed | None = None
    for expected_number, number in enumerate(run.rounds()):
        place = publishing_stage(recipe, run.method, number)
        if number != expected_number or place is None or place[0] != number or not run.is_complete(*place):
            break
        try:
            summary, changes = summary_of(number, table_of), table_of(BankChange, number)
            events, operations = rows_of(BankEvent, table_of(BankEvent, number)), _operations(run, recipe, number)
        except RecordDamaged:
            break
        try:
            bank = replayed_bank(bank, number, events, operations, changes)
        except RecordDamaged as error:
            return [bank_problem(run, place, BankEvent, "events that fit the bank before them", str(error))]
        if bank.digest != summary.digest:
            expected = f"events that result in the bank of digest {summary.digest}, as the round recorded"
            return [bank_problem(run, place, BankEvent, expected, f"one of digest {bank.digest}")]
    return []


def bank_problem(run: RunDirectory, place: tuple[int, str], row_type: type[Row], expected: str, found: str) -> Problem:
    """A table of a publishing stage that does not fit the rest of the record: the stage is to be taken back."""
    key = key_of(*place)
    file = f"rounds/{key}/{row_type.table}.parquet"
    return Problem(file, place[1], place[0], expected, found, f"crl redo {quoted(run.path)} --from {key}")


def _operations(run: RunDirectory, recipe: Recipe, number: int) -> list[Operation]:
    places = [recipe.resolve(run.method, number, stage, 0) for stage in ("distill", "merge")]
    return [row for place in places if place is not None for row in rows_of(Operation, run.read(*place, Operation))]
