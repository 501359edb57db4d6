"""Replay: every bank of a run made again from its events and the operations they name, row for row.

Consolidation decides, and leaves an event for every decision; replay decides nothing. It takes the events of a round in
their order, the rows of the operations, and the bank before, and makes the rows that the round must have had. So the
record says each thing twice, and one checks the other: digests that agree with those in `bank_snapshots` show that no
change of the bank lacks its event.

Entries that a bank started with (event kind `import`) have no operation: their rows are the changes of that round.
Where a text is stored is no part of an event: a row has empty file names where the bank before did not hold its text.
`segments.with_files` fills them. Nothing here reads or writes files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from crl.bank.changes import Change, applied, change_rows, digest_after
from crl.bank.consolidate import WAITS
from crl.bank.overlay import Overlay, new_row, updated_row
from crl.bank.snapshot import Snapshot
from crl.errors import RecordDamaged
from crl.records import BankChange, BankEntry, BankEvent, Operation, rows_of


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """The bank of a round, made again."""

    round: int
    changes: list[Change]
    """What became of every entry that changed, in order of entry ids, as consolidation gives them."""
    snapshot: Snapshot
    digest: str
    """To be compared with the `digest` of the round's `bank_snapshots` row."""


def replayed_bank(
    before: Replayed | None,
    number: int,
    events: Sequence[BankEvent],
    operations: Iterable[Operation],
    changes: pa.Table,
) -> Replayed:
    """The bank of round `number` from the replayed one before it; None: the run begins with this one.

    `operations` are those of the round's `distill` and `merge`. Of `changes`, the round's stored `BankChange` rows,
    only those are taken that events speak of as imported. Raises RecordDamaged as :func:`replay`.
    """
    earlier, digest = (Snapshot.of(0, []), "0") if before is None else (before.snapshot, before.digest)
    imported = _entries(rows_of(BankChange, changes)) if any(event.kind == "import" for event in events) else {}
    made = replay(earlier, events, {operation.operation_id: operation for operation in operations}, imported)
    snapshot = Snapshot(number, applied(earlier.table, [change_rows(made)]))
    return Replayed(number, made, snapshot, digest_after(digest, made))


def replay(
    before: Snapshot,
    events: Sequence[BankEvent],
    operations: Mapping[str, Operation],
    imported: Mapping[str, BankEntry] | None = None,
) -> list[Change]:
    """What one round's events did to the bank before them; operations by id, imported rows by entry id.

    Raises RecordDamaged, naming the event, where one does not fit what came before it.
    """
    entry_ids = [name for event in events for name in (event.entry_id, *event.parents) if name is not None]
    digests = [event.after_digest for event in events if event.after_digest is not None]
    bank = Overlay(before, entry_ids, digests)
    for event in events:
        _apply(bank, event, operations, imported or {})
    return bank.changes()


def _apply(
    bank: Overlay, event: BankEvent, operations: Mapping[str, Operation], imported: Mapping[str, BankEntry]
) -> None:
    if event.kind in ("return", "rejected"):
        return
    if event.entry_id is None:
        raise _damaged(event, "it names no entry")
    held = bank.get(event.entry_id)
    digest = None if held is None else held.content_digest
    if digest != event.before_digest:
        raise _damaged(event, f"the entry has text {digest}, not {event.before_digest}")
    parents = [parent for name in event.parents if (parent := bank.get(name)) is not None]
    if len(parents) < len(event.parents):
        raise _damaged(event, f"not all of its parents {', '.join(event.parents)} are there")
    if event.kind == "import":
        row = imported.get(event.entry_id)
        if row is None or (row.family, row.content_digest) != (event.family, event.after_digest):
            raise _damaged(event, "the round stored no such row")
        bank.bring(row)
    elif held is None:
        if event.kind not in ("add", "merge") or event.after_digest is None:
            raise _damaged(event, "there is no such entry")
        operation = _operation(event, operations)
        if event.kind == "merge":  # the parents of a version that waits stay
            for parent in parents:
                bank.remove(parent)
        bank.add(new_row(bank, operation, event.entry_id, event.after_digest, parents, round=event.round))
    elif event.after_digest is None:
        bank.remove(held)
    elif event.kind == "update":
        row = updated_row(bank, _operation(event, operations), held, event.after_digest, round=event.round)
        bank.replace(held, row)
    elif event.kind != "keep" or event.after_digest != event.before_digest:
        raise _damaged(event, "an event of this kind changes no text")


def _operation(event: BankEvent, operations: Mapping[str, Operation]) -> Operation:
    operation = operations.get(event.operation_id or "")
    asked = (event.kind, event.family, event.entry_id)
    if operation is not None and operation.kind == "update" and event.reason == WAITS:
        asked = ("update", event.family, event.parents[0])
    if operation is None or (operation.kind, operation.family, operation.entry_id) != asked:
        raise _damaged(event, f"no operation {event.operation_id} asks for it")
    return operation


def _entries(changes: Iterable[BankChange]) -> dict[str, BankEntry]:
    """Rows after a change, by id, of the entries that did not leave."""
    names = [field.name for field in dataclasses.fields(BankEntry)]
    return {
        row.entry_id: BankEntry(**{name: getattr(row, name) for name in names}) for row in changes if not row.removed
    }


def _damaged(event: BankEvent, found: str) -> RecordDamaged:
    return RecordDamaged(
        f"bank event {event.event_id} ({event.kind} {event.entry_id}) cannot be replayed: {found}",
        expected="an event that fits the bank before it",
        where=event.event_id,
        next_step="run `crl verify` on the run",
    )
