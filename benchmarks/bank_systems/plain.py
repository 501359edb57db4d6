"""The plain way: entries as one JSON file, vectors as one NPZ file, both written anew for every snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bank_systems.base import Changes, Rows, bytes_below, nearest


class JsonNpz:
    """A dictionary of entries and a matrix; nothing is synced to the disk."""

    name = "JSON + NPZ"
    exact, approximate = True, False
    efforts: tuple[Any, ...] = ()

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: dict[str, dict[str, Any]] = {}
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._ids: list[str] = []
        self._matrix_ND: NDArray[np.float32] | None = None

    def add(self, rows: Rows) -> None:
        self._take(rows, 0)
        self._write(0)

    def build(self) -> None:
        raise NotImplementedError(f"{self.name} has no approximate index")

    def search(self, queries_BD: NDArray[np.float32], count: int, effort: Any | None) -> list[list[str]]:
        assert effort is None and self._matrix_ND is not None
        return nearest(self._ids, self._matrix_ND, queries_BD, count)

    def prepare(self, round_number: int, changes: Changes) -> None:
        """Nothing."""

    def snapshot(self, round_number: int, changes: Changes) -> None:
        for entry_id, _ in changes.removed:
            del self._entries[entry_id], self._vectors[entry_id]
        self._take(changes.updated, round_number)
        self._take(changes.added, round_number)
        self._write(round_number)

    def open(self, round_number: int) -> None:
        place = self._place(round_number)
        self._entries = json.loads((place / "entries.json").read_text(encoding="utf-8"))
        with np.load(place / "vectors.npz") as stored:
            self._matrix_ND = stored["vectors"]
        self._ids = list(self._entries)

    def bytes(self) -> int:
        return bytes_below(self._directory)

    def close(self) -> None:
        self._entries, self._vectors, self._matrix_ND = {}, {}, None

    def _take(self, rows: Rows, round_number: int) -> None:
        for entry_id, family, text, vector_D in zip(rows.ids, rows.families, rows.texts, rows.vectors_ND, strict=True):
            self._entries[entry_id] = {"family": family, "text": text, "updated_round": round_number}
            self._vectors[entry_id] = vector_D

    def _write(self, round_number: int) -> None:
        place = self._place(round_number)
        place.mkdir(parents=True)
        self._ids = list(self._entries)
        self._matrix_ND = np.stack([self._vectors[entry_id] for entry_id in self._ids])
        (place / "entries.json").write_text(json.dumps(self._entries), encoding="utf-8")
        np.savez(place / "vectors.npz", vectors=self._matrix_ND)

    def _place(self, round_number: int) -> Path:
        return self._directory / f"{round_number:04d}"
