"""Eviction: which entries of a full family go, from columns.

`fifo` takes the smallest `order`. `least_useful` takes the smallest sum of outcomes / (uses + 1), the mean shrunk
toward 0 (unknown) by one pseudo-use. A text that no round has used yet is worth 0, or as much as the one that it was
made from if that is more: a bad experience that was mended does not go for what it said before, nor a good one before
its new words were tried. Entries whose text was written in this round go last, ties take the oldest. By either rule
proven entries (`bank.proven`) go only where all the others went.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.overlay import Overlay
from crl.config import BankConfig
from crl.records import BankEntry, EntryScore


def evict(
    bank: Overlay, config: BankConfig, scores: Mapping[str, EntryScore], *, round: int, capacities: Mapping[str, int]
) -> list[BankEntry]:
    """Bring every family of a bank down to its capacity; the entries that went, by family, the first to go first.

    `capacities` are those of families that have one of their own.
    """
    table, beside = bank.snapshot.table, bank.present()
    untouched_N = np.ones(table.num_rows, dtype=bool)
    untouched_N[bank.looked_up()] = False
    rows_U = np.flatnonzero(untouched_N)
    families = table["family"].combine_chunks().dictionary_encode()
    names = families.dictionary.to_pylist()
    names += sorted({entry.family for entry in beside} - set(names))
    code_of = {name: code for code, name in enumerate(names)}
    # Members are the untouched rows, then the entries beside the columns; both by age.
    codes_M = _joined(families.indices.to_numpy()[rows_U], [code_of[entry.family] for entry in beside])
    allowed = np.array([capacities.get(name, config.capacity) for name in names], dtype=np.int64)
    surplus = np.bincount(codes_M, minlength=len(names)) - allowed
    full = sorted(name for name in names if surplus[code_of[name]] > 0)
    if not full:
        return []
    keys: list[NDArray[Any]] = [_joined(table["order"].to_numpy()[rows_U], [entry.order for entry in beside])]

    def valued(value_of: Callable[[EntryScore, str], float]) -> NDArray[np.float64]:
        return np.concatenate([_of_rows(table, scores, value_of)[rows_U], _of(beside, scores, value_of)])

    if config.eviction == "least_useful":
        keys.append(valued(_worth))
        fresh_U = table["updated_round"].to_numpy()[rows_U] == round
        keys.append(np.concatenate([fresh_U, [entry.updated_round == round for entry in beside]]))
    if config.proven is not None:
        keys.append(valued(lambda score, digest: proves(score, digest, config)))
    leaving: list[int] = []
    for name in full:
        members = np.flatnonzero(codes_M == code_of[name])
        ranked = members[np.lexsort([key[members] for key in keys])]
        leaving += ranked[: surplus[code_of[name]]].tolist()
    taken = [member for member in leaving if member < len(rows_U)]
    rows = [int(rows_U[member]) for member in taken]
    of_columns = dict(zip(taken, zip(rows, bank.snapshot.taken(rows), strict=True), strict=True))
    gone = []
    for member in leaving:
        if member in of_columns:
            row, entry = of_columns[member]
            bank.remove_row(row, entry)
        else:
            entry = beside[member - len(rows_U)]
            bank.remove(entry)
        gone.append(entry)
    return gone


def proves(score: EntryScore | None, content_digest: str, config: BankConfig) -> bool:
    """Whether the games of a text prove it (`bank.proven`), by its entry's score, which may be of earlier words."""
    if config.proven is None or score is None or score.content_digest != content_digest:
        return False
    return score.uses >= config.proven.uses and score.mean_outcome >= config.proven.outcome


def _joined(column: NDArray[np.int64], beside: list[int]) -> NDArray[np.int64]:
    return np.concatenate([column, np.array(beside, dtype=np.int64)]).astype(np.int64)


def _worth(score: EntryScore, content_digest: str) -> float:
    """What the text of an entry is worth by the entry's score, which may be of earlier words."""
    value = score.mean_outcome * score.uses / (score.uses + 1)
    return value if score.content_digest == content_digest else max(value, 0.0)


def _of(
    entries: list[BankEntry], scores: Mapping[str, EntryScore], value_of: Callable[[EntryScore, str], float]
) -> NDArray[np.float64]:
    found = (
        value_of(scores[entry.entry_id], entry.content_digest) if entry.entry_id in scores else 0.0 for entry in entries
    )
    return np.array(list(found), dtype=np.float64)


def _of_rows(
    table: pa.Table, scores: Mapping[str, EntryScore], value_of: Callable[[EntryScore, str], float]
) -> NDArray[np.float64]:
    """Value [N] of every row; 0 where nothing is known."""
    values_N = np.zeros(table.num_rows)
    if scores:
        places = pc.index_in(table["entry_id"], value_set=pa.array(list(scores), pa.string())).combine_chunks()
        scored = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
        digests, listed = table["content_digest"].take(scored).to_pylist(), list(scores.values())
        found = places.drop_null().to_pylist()
        values_N[scored] = [value_of(listed[place], digest) for place, digest in zip(found, digests, strict=True)]
    return values_N
