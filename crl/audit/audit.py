"""Do the rows of a run fit together? Files may be whole (`verify.py`) and rows still not.

- Are the banks what their rounds recorded? Every round's changes are applied to the bank before it, which a round that
  stored the whole bank must equal; the digest is kept up by differences, so the audit of many rounds costs what changed
  in them.
- Do the events explain the banks? Rows may agree with the digest of a round and still not with its events: a change
  without an event, an event that names the wrong operation. Each bank is made again from events and operations alone;
  the first round that differs is named, and no later one, since what follows builds on it.
- Did a bank keep to its trials? An operation whose text failed, or was not tried, must have changed nothing.
- Are rows as old as the recipe declares? What a stage reads is a rule of round numbers. Retrievals name the round of
  the bank that was searched, token records the weights that sampled them; in rounds that overlap (`method.overlap`)
  both have to be those of the declared round, whatever was newest when the stage ran.

Files that cannot be read are not named again: `verify` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from crl.audit.problem import Problem, Record
from crl.audit.verify import problems_in, record_of
from crl.bank.changes import summary_of
from crl.bank.replay import Replayed, replayed_bank
from crl.bank.snapshot import add_digests, row_digest
from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.records import (
    TRIAL,
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    Generation,
    Operation,
    Retrieval,
    Row,
    Trial,
    Weights,
    rows_of,
)
from crl.rounds.bank_tables import publishing_stage, tables_of
from crl.rounds.context import BANK
from crl.rounds.stage import Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of

R = TypeVar("R", bound=Row)

_SLICE = 65_536
"""Rows that are objects at a time."""


def problems_of(run: RunDirectory, recipe: Recipe, record: Record | None = None) -> list[Problem]:
    """Every problem of a run: of its files (`verify.py`), and of its rows."""
    record = record or record_of(run.path, from_rows=partial(recipe.from_rows, run.method))
    of_banks = [*bank_problems(run, recipe), *replay_problems(run, recipe)]
    of_rows = [*of_banks, *trial_problems(run, recipe), *staleness_problems(run, recipe)]
    return [*problems_in(record), *(each for each in of_rows if (each.round, each.stage) not in record.copies)]


def bank_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """Rounds whose bank is not the one they recorded."""
    return list(_problems(run, recipe))


def _problems(run: RunDirectory, recipe: Recipe) -> Iterator[Problem]:
    bank: dict[str, int] | None = {}
    """Digest of each row by entry; None after a round that could not be read, until one stored the whole bank."""
    digest = "0"
    rounds = run.rounds()
    for number in rounds:
        if number and number - 1 not in rounds:  # a whole round is gone: `verify` names it
            bank = None
        place = publishing_stage(recipe, run.method, number)
        if place is None or place[0] != number:
            continue
        if not run.is_complete(*place):  # the newest round, or damage that `verify` names
            bank = None
            continue
        try:
            summaries = rows_of(BankSnapshot, run.read(*place, BankSnapshot))
            whole = run.read(*place, BankEntry)
            changes = run.read(*place, BankChange)
        except RecordDamaged:
            bank = None
            continue
        if not summaries:  # of a recipe whose round writes none
            bank = None
            continue
        if bank is not None:
            digest = _apply(bank, changes, digest)
        if summaries[0].base_round == number:
            stored = {row.entry_id: row_digest(row) for row in _rows(BankEntry, whole)}
            if bank is not None and bank != stored:
                expected, found = f"the {len(bank)} entries that the changes result in", f"{len(stored)} others"
                yield bank_problem(run, place, BankEntry, expected, found)
            bank, digest = stored, add_digests("0", added=stored.values())
        if bank is not None and (digest, len(bank)) != (summaries[0].digest, summaries[0].entries):
            expected = f"{summaries[0].entries} entries of digest {summaries[0].digest}, as the round recorded"
            yield bank_problem(run, place, BankSnapshot, expected, f"{len(bank)} of digest {digest}")
            bank = None  # the rounds that build on this one would all be named as well


def _apply(bank: dict[str, int], changes: pa.Table, digest: str) -> str:
    """Bring the digests by entry up to date; the digest of the bank then."""
    came, went = [], []
    for change in _rows(BankChange, changes):
        went.append(bank.pop(change.entry_id, 0))
        if not change.removed:
            came.append(row_digest(change))
            bank[change.entry_id] = came[-1]
    return add_digests(digest, added=came, removed=went)


def _rows(row_type: type[R], table: pa.Table) -> Iterator[R]:
    for first in range(0, table.num_rows, _SLICE):
        yield from rows_of(row_type, table.slice(first, _SLICE))


def replay_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """The first round whose events do not result in its bank."""
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


def bank_problem(
    run: RunDirectory, stage_key: tuple[int, str], row_type: type[Row], expected: str, found: str
) -> Problem:
    """A table of a publishing stage that does not fit the rest of the record: the stage is to be taken back."""
    key = key_of(*stage_key)
    file = f"rounds/{key}/{row_type.table}.parquet"
    return Problem(file, stage_key[1], stage_key[0], expected, found, f"crl redo {quoted(run.path)} --from {key}")


def _operations(run: RunDirectory, recipe: Recipe, number: int) -> list[Operation]:
    places = [recipe.resolve(run.method, number, stage, 0) for stage in ("distill", "merge")]
    return [row for place in places if place is not None for row in rows_of(Operation, run.read(*place, Operation))]


def trial_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """Rounds that let something into the bank which its trial kept out."""
    found = []
    for number in run.rounds():
        place = publishing_stage(recipe, run.method, number)
        if place is None or place[0] != number or not run.is_complete(*place) or not run.is_complete(number, TRIAL):
            continue
        try:
            trials = rows_of(Trial, run.read(number, TRIAL, Trial))
            events = rows_of(BankEvent, run.read(*place, BankEvent))
        except RecordDamaged:
            continue
        kept_out = {row.operation_id: row.reason_code for row in trials if not row.admitted}
        for event in events:
            reason = kept_out.get(event.operation_id or "")
            if reason is not None and (event.kind, event.reason) != ("rejected", reason):
                said = f"{event.kind} {event.entry_id}" + (f" ({event.reason})" if event.reason else "")
                expected = f"operation {event.operation_id} rejected: {reason}, as its trial says"
                found.append(bank_problem(run, place, BankEvent, expected, f"{event.event_id}: {said}"))
                break
    return found


def staleness_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """Stages whose rows were made with another round than declared."""
    found: list[Problem] = []
    for number in run.rounds():
        # Round 0 prepares: what it trains on was written by scripts.
        for stage in recipe.stages_of(run.method, number) if number else ():
            if run.is_complete(number, stage.name):
                try:
                    found += _of_stage(run, recipe, number, stage)
                except RecordDamaged:
                    continue
    return found


def _of_stage(run: RunDirectory, recipe: Recipe, number: int, stage: Stage) -> Iterator[Problem]:
    def problem(row_type: type[Row], expected: str, found: str) -> Problem:
        return bank_problem(run, (number, stage.name), row_type, expected, found)

    names = {read.name: read for read in stage.reads}
    if Retrieval in stage.writes and BANK in names:
        declared = max(0, number + names[BANK].offset)
        searched = set(run.read(number, stage.name, Retrieval)["bank_round"].to_pylist())
        if searched - {declared}:
            yield problem(Retrieval, f"searches of the bank of round {declared}, as declared", f"of {sorted(searched)}")
    if Generation not in stage.writes:
        return
    sampled = run.read(number, stage.name, Generation)
    method = run.method_of(
        number, stage.name
    )  # of a round that was inherited, the parent's: its roles own their weights
    for role in method.uses():
        if role not in names:
            continue
        place = recipe.resolve(method, number, names[role].stage, names[role].offset)
        if place is None or not run.is_complete(*place):
            continue
        rows = [row for row in rows_of(Weights, run.read(*place, Weights)) if row.role == method.owner(role)]
        digests = set(sampled.filter(pc.equal(sampled["role"], role))["weights_digest"].to_pylist())
        if digests - {row.weights_digest for row in rows}:
            expected = f"token records of the {role} of round {place[0]}, as declared"
            yield problem(Generation, expected, f"of weights {', '.join(sorted(digests))}")
