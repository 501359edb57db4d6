"""The project's bank behind the protocol of `base.py`: what is searched are the indexes that retrieval uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss  # noqa: F401 - loaded before the clock starts, as the libraries of the others are
import numpy as np
import pandas  # noqa: F401 - pyarrow loads it with the first array of numbers
from numpy.typing import NDArray

from bank_systems.base import Changes, Rows
from bank_systems.record import BankRun
from crl.bank.index import ApproximateIndex, ExactIndex, Scope, open_index
from crl.run.cache import Shelf


class Ours:
    """A run directory. The approximate index has no setting: it is made for a recall of 0.95."""

    name = "crl"
    exact, approximate = True, True
    efforts: tuple[Any, ...] = ("its own",)

    def __init__(self, directory: Path) -> None:
        self._run = BankRun(directory, capacity=10_000_000)
        self._rounds = 0
        self._ids: list[str] = []
        self._scope: Scope | None = None
        self._indexes: dict[str, ExactIndex | ApproximateIndex] = {}

    def add(self, rows: Rows) -> None:
        self._run.publish_first(rows)

    def build(self) -> None:
        self._index("approximate")

    def open(self, round_number: int) -> None:
        bank = self._run.bank(round_number)
        self._ids = bank.table["entry_id"].to_pylist()
        rows_N = np.arange(len(bank), dtype=np.int64)
        self._scope = Scope(self._run.embeddings(bank), rows_N, bank.table["content_digest"].combine_chunks())
        self._indexes = {}

    def search(self, queries_BD: NDArray[np.float32], count: int, effort: Any | None) -> list[list[str]]:
        index = self._index("exact" if effort is None else "approximate")
        return [[self._ids[row] for row in rows_K.tolist()] for rows_K, _ in index.nearest(queries_BD, count)]

    def prepare(self, round_number: int, changes: Changes) -> None:
        self._run.propose(round_number, changes)

    def snapshot(self, round_number: int, changes: Changes) -> None:
        self._run.consolidate(round_number, changes)
        self._rounds = round_number

    def bytes(self) -> int:
        return sum(sum(self._run.bank_bytes(number).values()) for number in range(self._rounds + 1))

    def close(self) -> None:
        self._run.close()
        self._ids, self._scope, self._indexes = [], None, {}

    def _index(self, kind: str) -> ExactIndex | ApproximateIndex:
        if self._scope is None:
            self.open(self._rounds)
        assert self._scope is not None
        if kind not in self._indexes:
            self._indexes[kind] = open_index(self._scope, kind, cache=Shelf(self._run.path))
        return self._indexes[kind]
