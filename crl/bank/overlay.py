"""A snapshot while it changes: its columns as they are, and on top of them the entries that were touched.

A round touches thousands of a bank's entries, the bank may hold a million. So nothing here is made of every entry: what
the round's operations name (ids, digests of texts) is looked up in the columns once, in one pass each, and whatever
happens to those entries afterward happens to a few rows beside the columns. What is named later is looked up later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from crl.bank.changes import Change
from crl.bank.snapshot import Snapshot
from crl.records import BankEntry, Operation, rows_with


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """One entry that holds a text."""

    family: str
    order: int
    """Its age."""


class Overlay:
    """A bank that changes, over the snapshot it comes from. What may be asked for was looked up: entries, by id, and
    texts, by digest."""

    def __init__(self, snapshot: Snapshot, entry_ids: Iterable[str] = (), digests: Iterable[str] = ()) -> None:
        """Entries and texts are looked up as by :meth:`look_up`."""
        self.snapshot = snapshot
        self.files: dict[str, tuple[str, str]] = {}
        """Segment and embedding file of the texts that were looked up and are held, by digest."""
        self._now: dict[str, BankEntry | None] = {}
        self._before: dict[str, BankEntry] = {}
        self._rows: dict[str, int] = {}
        self._digests: set[str] = set()
        self._holders: dict[str, dict[str, Holder]] = {}
        table = snapshot.table
        self.next_order: int = int(table["order"][-1].as_py()) + 1 if table.num_rows else 0
        """The age of the next new entry; the columns are sorted by it."""
        self.look_up(entry_ids, digests)

    def get(self, entry_id: str | None) -> BankEntry | None:
        """An entry as it is now."""
        return None if entry_id is None else self._now.get(entry_id)

    def look_up(self, entry_ids: Iterable[str], digests: Iterable[str]) -> None:
        """Look up entries by id and texts by digest, in one pass over a column for each; those that are known already
        stay as they are."""
        new = [name for name in dict.fromkeys(entry_ids) if name not in self._now]
        rows = {name: row for name, row in zip(new, self.snapshot.rows_of(new), strict=True) if row is not None}
        for entry in self.snapshot.taken(list(rows.values())):
            self._now[entry.entry_id] = self._before[entry.entry_id] = entry
        self._rows |= rows
        wanted = set(digests) - self._digests
        self._digests |= wanted
        columns = ("entry_id", "family", "content_digest", "order", "segment", "embedding_file")
        held = rows_with(self.snapshot.table.select(columns), "content_digest", wanted)
        for entry_id, family, digest, order, segment, embedding_file in zip(
            *(held[name].to_pylist() for name in columns), strict=True
        ):
            self.files[digest] = (segment, embedding_file)
            known = self._now.get(entry_id)
            # An entry that was looked up before may hold another text by now, or be gone.
            if entry_id not in self._now or (known is not None and known.content_digest == digest):
                self._holders.setdefault(digest, {})[entry_id] = Holder(family, order)

    def holders(self, family: str | None, digest: str) -> list[str]:
        """Entries of a family (None: of any) that now hold a text that was looked up, the oldest first."""
        held = self._holders.get(digest, {})
        mine = [entry_id for entry_id, holder in held.items() if family is None or holder.family == family]
        return sorted(mine, key=lambda entry_id: (held[entry_id].order, entry_id))

    def order_of(self, entry_id: str, digest: str) -> int:
        """Age of an entry that :meth:`holders` gave for a text."""
        return self._holders[digest][entry_id].order

    def add(self, entry: BankEntry) -> None:
        """A new entry, of the age `next_order`."""
        self._put(entry)
        self.next_order += 1

    def bring(self, entry: BankEntry) -> None:
        """An entry from elsewhere, of an age of its own; new ones are younger."""
        self._put(entry)
        self.next_order = max(self.next_order, entry.order + 1)

    def replace(self, before: BankEntry, after: BankEntry) -> None:
        """An entry's new row in place of its old one."""
        self.remove(before)
        self._put(after)

    def remove(self, entry: BankEntry) -> None:
        """Take an entry out."""
        self._now[entry.entry_id] = None
        self._holders.get(entry.content_digest, {}).pop(entry.entry_id, None)

    def remove_row(self, row: int, entry: BankEntry) -> None:
        """Take out an entry of the snapshot that nobody looked up."""
        self._before[entry.entry_id], self._rows[entry.entry_id] = entry, row
        self.remove(entry)

    def looked_up(self) -> NDArray[np.int64]:
        """Rows of the snapshot that :meth:`present` speaks for: their entries are beside the columns, or gone."""
        return np.fromiter(self._rows.values(), dtype=np.int64, count=len(self._rows))

    def present(self) -> list[BankEntry]:
        """Entries beside the columns that the bank holds now, by age."""
        held = [entry for entry in self._now.values() if entry is not None]
        return sorted(held, key=lambda entry: (entry.order, entry.entry_id))

    def changes(self) -> list[Change]:
        """What became of every entry that changed, in order of entry ids."""
        pairs = [Change(self._before.get(entry_id), self._now[entry_id]) for entry_id in sorted(self._now)]
        return [pair for pair in pairs if pair.before != pair.after]

    def _put(self, entry: BankEntry) -> None:
        self._now[entry.entry_id] = entry
        self._holders.setdefault(entry.content_digest, {})[entry.entry_id] = Holder(entry.family, entry.order)


def new_row(
    bank: Overlay, operation: Operation, entry_id: str, digest: str, parents: Iterable[BankEntry] = (), *, round: int
) -> BankEntry:
    """The row of an entry that an `add` or a `merge` makes; its files are empty where the snapshot lacks the text."""
    parents = list(parents)
    segment, embedding_file = bank.files.get(digest, ("", ""))
    return BankEntry(
        entry_id=entry_id,
        family=operation.family,
        content_digest=digest,
        segment=segment,
        embedding_file=embedding_file,
        version=1,
        created_round=round,
        updated_round=round,
        order=bank.next_order,
        operation_id=operation.operation_id,
        distillation_id=operation.distillation_id,
        generation_id=operation.generation_id,
        episode_ids=_union(*(parent.episode_ids for parent in parents), operation.episode_ids),
        parents=[parent.entry_id for parent in parents],
        embedder_cut=bool(operation.embedder_cut),
    )


def updated_row(bank: Overlay, operation: Operation, entry: BankEntry, digest: str, *, round: int) -> BankEntry:
    """The row of an entry that an `update` rewrote; its files are empty where the snapshot lacks the text."""
    segment, embedding_file = bank.files.get(digest, ("", ""))
    return dataclasses.replace(
        entry,
        content_digest=digest,
        segment=segment,
        embedding_file=embedding_file,
        version=entry.version + 1,
        updated_round=round,
        operation_id=operation.operation_id,
        distillation_id=operation.distillation_id,
        generation_id=operation.generation_id,
        episode_ids=_union(entry.episode_ids, operation.episode_ids),
        embedder_cut=bool(operation.embedder_cut),
    )


def _union(*lists: Iterable[str]) -> list[str]:
    """Each item once, in order of first appearance."""
    return list(dict.fromkeys(item for items in lists for item in items))
