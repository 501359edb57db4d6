"""The bank after a round as columns: a million entries stay an Arrow table, rows become objects only when asked for.

How a snapshot is put together from what the rounds stored is in `changes.py`; this file reads nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crl.records import BankEntry, rows_of, schema_of, table_of

STORAGE = ("segment", "embedding_file")
"""Columns that say where text and embedding are: no part of what an entry is, so no part of a digest."""
_LOGICAL = tuple(field.name for field in dataclasses.fields(BankEntry) if field.name not in STORAGE)
_MODULUS = 1 << 256


class Snapshot:
    """The entries of one bank, by age (`order`)."""

    def __init__(self, round_number: int, table: pa.Table) -> None:
        """`table` has the columns of `BankEntry`, in any order of rows."""
        names = schema_of(BankEntry).names
        ordered = table.select(names).cast(schema_of(BankEntry))
        if not _is_sorted(ordered):
            ordered = ordered.take(pc.sort_indices(ordered, [("order", "ascending"), ("entry_id", "ascending")]))
        self.round = round_number
        self.table: pa.Table = ordered.combine_chunks()

    @classmethod
    def of(cls, round_number: int, entries: Iterable[BankEntry]) -> Snapshot:
        """A snapshot of rows."""
        return cls(round_number, table_of(BankEntry, entries))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def taken(self, rows: Sequence[int]) -> list[BankEntry]:
        """The entries in some rows, in that order."""
        return rows_of(BankEntry, self.table.take(pa.array(rows, pa.int64())))

    def entries(self) -> list[BankEntry]:
        """Every entry, the oldest first: an object each, so for small banks only."""
        return rows_of(BankEntry, self.table)

    def rows_of(self, entry_ids: Sequence[str]) -> list[int | None]:
        """Rows of entries, without an index over the whole bank; None where it does not hold one."""
        if not entry_ids or not len(self):
            return [None] * len(entry_ids)
        # The few are made the value set: a hash table over the whole bank would cost more than it saves.
        asked = pa.array(list(dict.fromkeys(entry_ids)), pa.string())
        places = pc.index_in(self.table["entry_id"], value_set=asked).combine_chunks()
        held = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
        found = dict(zip(pc.take(asked, places.take(pa.array(held))).to_pylist(), held.tolist(), strict=True))
        return [found.get(entry_id) for entry_id in entry_ids]

    def digests_of(self, entry_ids: Sequence[str]) -> list[str | None]:
        """Digests of the texts of many entries at once; None where the bank does not hold the entry."""
        rows = pa.array(self.rows_of(entry_ids), pa.int64())
        digests: list[str | None] = self.table["content_digest"].take(rows).to_pylist()
        return digests

    def newest_first(self) -> Snapshot:
        """The same entries with their rows in the opposite order."""
        turned = copy.copy(self)
        turned.table = self.table.take(pa.array(np.arange(len(self) - 1, -1, -1)))
        return turned

    def digest(self) -> str:
        """Digest of the whole bank, computed from its rows: see :func:`add_digests`."""
        return add_digests("0", added=[row_digest(entry) for entry in self.entries()])


def row_digest(entry: BankEntry) -> int:
    """SHA-256 of what an entry is, as a number: its columns but for the two that say where its files are."""
    values = [getattr(entry, name) for name in _LOGICAL]
    return int.from_bytes(hashlib.sha256(json.dumps(values, ensure_ascii=True).encode()).digest(), "big")


def add_digests(digest: str, *, added: Iterable[int] = (), removed: Iterable[int] = ()) -> str:
    """Digest of a bank after rows came and went: the sum of their digests modulo 2^256, in hex (64 digits).

    A sum does not depend on the order and is kept up by differences: a round costs what changed in it.
    """
    return f"{(int(digest, 16) + sum(added) - sum(removed)) % _MODULUS:064x}"


def _is_sorted(table: pa.Table) -> bool:
    order = table["order"].to_numpy()
    return bool(np.all(order[1:] > order[:-1])) if len(order) > 1 else True
