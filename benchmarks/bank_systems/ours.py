"""The project's bank behind the protocol of `base.py`: what is searched is the index that retrieval uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss  # noqa: F401 - loaded before the clock starts, as the libraries of the others are
import numpy as np
from numpy.typing import NDArray

from bank_systems.base import Changes, Rows
from bank_systems.record import BankRun
from crl.bank.index import ExactIndex, build_flat


class Ours:
    """A run directory."""

    name = "crl"
    exact, approximate = True, False
    efforts: tuple[Any, ...] = ()

    def __init__(self, directory: Path) -> None:
        self._run = BankRun(directory, capacity=10_000_000)
        self._rounds = 0
        self._ids: list[str] = []
        self._exact: ExactIndex | None = None

    def add(self, rows: Rows) -> None:
        self._run.publish_first(rows)

    def open(self, round_number: int) -> None:
        bank = self._run.bank(round_number)
        vectors_ND = self._run.embeddings(bank)
        self._ids = bank.table["entry_id"].to_pylist()
        self._exact = ExactIndex(vectors_ND, build_flat(vectors_ND))

    def search(self, queries_BD: NDArray[np.float32], count: int, effort: Any | None) -> list[list[str]]:
        if self._exact is None:
            self.open(self._rounds)
        assert self._exact is not None
        return [[self._ids[row] for row in self._exact.nearest(query_D, count)[0]] for query_D in queries_BD]

    def prepare(self, round_number: int, changes: Changes) -> None:
        self._run.propose(round_number, changes)

    def snapshot(self, round_number: int, changes: Changes) -> None:
        self._run.consolidate(round_number, changes)
        self._rounds = round_number

    def bytes(self) -> int:
        return sum(sum(self._run.bank_bytes(number).values()) for number in range(self._rounds + 1))

    def close(self) -> None:
        self._run.close()
        self._ids, self._exact = [], None
