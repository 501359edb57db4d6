"""Chroma: an embedded collection with an HNSW index. It has no versions: a snapshot is a copy of its directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
from numpy.typing import NDArray

from bank_systems.base import Changes, Rows, bytes_below


class Chroma:
    """One collection. There is no exhaustive search; an effort is `ef_search`, how many candidates HNSW keeps."""

    name = "Chroma"
    exact, approximate = False, True
    efforts: tuple[Any, ...] = (32, 64, 100, 200, 400, 800)

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._client: Any = None
        self._collection: Any = None
        self._effort: Any = None

    def add(self, rows: Rows) -> None:
        self._connect(self._directory / "live")
        self._collection = self._client.create_collection(
            "bank", embedding_function=None, configuration={"hnsw": {"space": "ip"}}
        )
        self._put(rows, 0)
        self._copy(0)

    def build(self) -> None:
        """The index is made while entries are added."""

    def search(self, queries_BD: NDArray[np.float32], count: int, effort: Any | None) -> list[list[str]]:
        assert effort is not None
        if effort != self._effort:
            self._collection.modify(configuration={"hnsw": {"ef_search": effort}})
            self._effort = effort
        found = self._collection.query(query_embeddings=queries_BD, n_results=count, include=["distances"])
        return [list(ids) for ids in found["ids"]]

    def prepare(self, round_number: int, changes: Changes) -> None:
        """Nothing."""

    def snapshot(self, round_number: int, changes: Changes) -> None:
        self._put(changes.updated, round_number)
        self._put(changes.added, round_number)
        gone = [entry_id for entry_id, _ in changes.removed]
        for first in range(0, len(gone), self._batch):
            self._collection.delete(ids=gone[first : first + self._batch])
        self._copy(round_number)

    def open(self, round_number: int) -> None:
        self._connect(self._place(round_number))
        self._collection = self._client.get_collection("bank", embedding_function=None)

    def bytes(self) -> int:
        """Of the copies; the live directory is one more."""
        return sum(bytes_below(place) for place in self._directory.glob("[0-9]*"))

    def close(self) -> None:
        self._client = self._collection = None

    def _connect(self, place: Path) -> None:
        settings = chromadb.Settings(anonymized_telemetry=False)
        self._client = chromadb.PersistentClient(path=str(place), settings=settings)

    @property
    def _batch(self) -> int:
        return int(self._client.get_max_batch_size())

    def _put(self, rows: Rows, round_number: int) -> None:
        for first in range(0, len(rows), self._batch):
            last = first + self._batch
            self._collection.upsert(
                ids=rows.ids[first:last],
                embeddings=rows.vectors_ND[first:last],
                documents=rows.texts[first:last],
                metadatas=[{"family": family, "updated_round": round_number} for family in rows.families[first:last]],
            )

    def _copy(self, round_number: int) -> None:
        shutil.copytree(self._directory / "live", self._place(round_number))

    def _place(self, round_number: int) -> Path:
        return self._directory / f"{round_number:04d}"
