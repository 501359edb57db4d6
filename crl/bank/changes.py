"""How snapshots are stored: the changes of every round, and now and then the whole bank.

A round stores one `bank_changes` row for every entry that it added, changed or removed, and one `bank_snapshots` row. A
**base** (`bank`, every entry) is stored when the changes since the last one outnumber the entries, and after
:data:`LONGEST_CHAIN` rounds: disk grows with what changed, and opening a round reads at most about twice what it
holds. Both rules look at rows only, so a round made again stores the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crl.bank.snapshot import Snapshot, add_digests, row_digest
from crl.errors import RecordDamaged
from crl.records import BankChange, BankEntry, BankSnapshot, Row, rows_of, rows_with, schema_of, table_of

LONGEST_CHAIN = 64
"""Rounds after a base, its own included, that store changes only."""

TableOf = Callable[[type[Row], int], pa.Table]
"""Rows of a type as the publishing stage of a round wrote them; an empty table where it wrote none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What became of one entry in a round."""

    before: BankEntry | None
    """Its row before; None for an entry that is new."""
    after: BankEntry | None
    """Its row after; None for an entry that left the bank."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """What a round stores of its bank."""

    changes: pa.Table
    """Rows of `BankChange`."""
    summary: BankSnapshot
    base: bool
    """Whether the whole bank is stored as well."""


def stored(previous: BankSnapshot | None, changes: Sequence[Change], *, round: int) -> Stored:
    """What to store for a round, after the summary of the bank before it (None: there was none)."""
    removed = sum(change.after is None for change in changes)
    came = sum(change.before is None for change in changes)
    entries = (previous.entries if previous else 0) + came - removed
    since = (previous.changes_since_base if previous else 0) + len(changes)
    base = previous is None or since > max(entries, 1) or round - previous.base_round >= LONGEST_CHAIN
    summary = BankSnapshot(
        round=round,
        entries=entries,
        changed=len(changes) - removed,
        removed=removed,
        base_round=round if base or previous is None else previous.base_round,
        changes_since_base=0 if base else since,
        digest=digest_after(previous.digest if previous else "0", changes),
    )
    return Stored(change_rows(changes), summary, base)


def digest_after(digest: str, changes: Iterable[Change]) -> str:
    """Digest of a bank after changes, from the one before them ("0": an empty bank)."""
    listed = list(changes)
    return add_digests(
        digest,
        added=[row_digest(change.after) for change in listed if change.after is not None],
        removed=[row_digest(change.before) for change in listed if change.before is not None],
    )


def change_rows(changes: Iterable[Change]) -> pa.Table:
    """Rows of `BankChange`, in the order given."""
    rows, removed = [], []
    for change in changes:
        last = change.after or change.before
        if last is None:
            raise ValueError("a change has neither a row before nor one after")
        rows.append(last)
        removed.append(change.after is None)
    # Column by column: an object more for each of a million imported entries would cost more than the rest.
    return table_of(BankEntry, rows).append_column("removed", pa.array(removed, pa.bool_())).cast(schema_of(BankChange))


def summary_of(round_number: int, table_of: TableOf) -> BankSnapshot:
    """The summary of the bank after a round; of a recipe whose round wrote none, that of an empty bank."""
    empty = BankSnapshot(
        round=round_number, entries=0, changed=0, removed=0, base_round=round_number, changes_since_base=0,
        digest=add_digests("0"),
    )  # fmt: skip
    return next(iter(rows_of(BankSnapshot, table_of(BankSnapshot, round_number))), empty)


def open_snapshot(round_number: int, table_of: TableOf) -> Snapshot:
    """The bank after a round, from its base and the changes since.

    Raises RecordDamaged where they do not result in what the round recorded; `table_of` raises for what it cannot read.
    """
    summary = summary_of(round_number, table_of)
    base = table_of(BankEntry, summary.base_round)
    changes = [table_of(BankChange, each) for each in range(summary.base_round + 1, round_number + 1)]
    snapshot = Snapshot(round_number, applied(base, changes))
    if len(snapshot) != summary.entries:
        raise RecordDamaged(
            f"the bank after round {round_number} has {len(snapshot)} entries",
            expected=f"{summary.entries}, as the round recorded",
            where=f"round {round_number}, tables bank (round {summary.base_round}) and bank_changes",
            next_step="run `crl verify` on the run",
        )
    return snapshot


def applied(entries: pa.Table, changes: Sequence[pa.Table]) -> pa.Table:
    """Rows of `BankEntry` after changes, which are in the order of their rounds."""
    columns = schema_of(BankEntry).names
    whole = entries.select(columns)
    listed = pa.concat_tables([schema_of(BankChange).empty_table(), *changes]).combine_chunks()
    if not listed.num_rows:
        return whole
    changed = listed["entry_id"].combine_chunks()
    codes = changed.dictionary_encode().indices.to_numpy()
    last = np.empty(codes.max() + 1, dtype=np.int64)
    last[codes] = np.arange(len(codes))  # of several changes of an entry the last one stays
    newest = listed.take(pa.array(np.sort(last)))
    kept = whole.filter(pc.invert(pc.is_in(whole["entry_id"], value_set=changed)))
    return pa.concat_tables([kept, newest.filter(pc.invert(newest["removed"])).select(columns)])


def files_of(digests: Iterable[str], round_number: int, table_of: TableOf) -> dict[str, tuple[str, str]]:
    """Where texts are that the bank held at its base or since: (segment, embedding file) by content digest.

    What was removed and comes back is stored once. A text that left before may be stored a second time: looking for
    it would read every round.
    """
    wanted = set(digests)
    if not wanted:
        return {}
    base_round = summary_of(round_number, table_of).base_round
    tables = [table_of(BankEntry, base_round)]
    tables += [table_of(BankChange, each) for each in range(base_round, round_number + 1)]
    places: dict[str, tuple[str, str]] = {}
    for table in tables:
        held = rows_with(table, "content_digest", wanted)
        for digest, segment, embedding_file in zip(
            *(held[name].to_pylist() for name in ("content_digest", "segment", "embedding_file")), strict=True
        ):
            places.setdefault(digest, (segment, embedding_file))
    return places
