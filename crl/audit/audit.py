"""Are the banks of a run what their rounds recorded? Files may be whole and rows still not fit together.

Every round's changes are applied to the bank before it, which a round that stored the whole bank must equal; the digest
is kept up by differences, so the audit of many rounds costs what changed in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import pyarrow as pa

from crl.audit.replays import bank_problem, replay_problems
from crl.audit.staleness import staleness_problems
from crl.audit.trials import trial_problems
from crl.bank.snapshot import add_digests, row_digest
from crl.errors import RecordDamaged
from crl.records import BankChange, BankEntry, BankSnapshot, Row, rows_of
from crl.rounds.recipe import publishing_stage
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.problem import Problem, Record
from crl.run.verify import problems_in, record_of

R = TypeVar("R", bound=Row)

_SLICE = 65_536
"""Rows that are objects at a time."""


def problems_of(run: RunDirectory, recipe: Recipe, record: Record | None = None) -> list[Problem]:
    """Every problem of a run: of its files (:func:`crl.run.verify.verify`), its banks, the events and the trials behind
    these, and the age of what its rows were made with."""
    record = record or record_of(run.path, from_rows=partial(recipe.from_rows, run.method))
    of_banks = [*bank_problems(run, recipe), *replay_problems(run, recipe)]
    return [*problems_in(record), *of_banks, *trial_problems(run, recipe), *staleness_problems(run, recipe)]


def bank_problems(run: RunDirectory, recipe: Recipe) -> list[Problem]:
    """Rounds whose bank is not the one they recorded. Files that cannot be read are not named again: `verify` does."""
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
