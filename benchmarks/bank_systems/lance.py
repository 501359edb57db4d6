"""LanceDB: a table whose every write makes a version; a snapshot is the version that a round ends with."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.index import IvfFlat
from numpy.typing import NDArray

from bank_systems.base import Changes, Rows, bytes_below


class Lance:
    """One table. Approximate search: IVF_FLAT; an effort is the number of partitions probed."""

    name = "LanceDB"
    exact, approximate = True, True
    efforts: tuple[Any, ...] = (5, 10, 20, 40, 80, 160, 320)

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._table: Any = None

    def add(self, rows: Rows) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._table = lancedb.connect(self._directory / "lance").create_table("bank", _table(rows, 0))
        self._keep(0)

    def build(self) -> None:
        self._table.create_index("vector", config=IvfFlat(distance_type="dot"))
        self._table.wait_for_index(["vector_idx"], timeout=datetime.timedelta(minutes=10))
        self._keep(0)

    def search(self, queries_BD: NDArray[np.float32], count: int, effort: Any | None) -> list[list[str]]:
        query = self._table.search(list(queries_BD)).distance_type("dot").limit(count).select(["id", "_distance"])
        if effort is None:
            query = query.bypass_vector_index()
        else:
            query = query.nprobes(effort)
        found = query.to_arrow()
        answers: list[list[str]] = [[] for _ in queries_BD]
        for which, entry_id in zip(found["query_index"].to_pylist(), found["id"].to_pylist(), strict=True):
            answers[which].append(entry_id)
        return answers

    def prepare(self, round_number: int, changes: Changes) -> None:
        """Nothing."""

    def snapshot(self, round_number: int, changes: Changes) -> None:
        written = pa.concat_tables([_table(changes.updated, round_number), _table(changes.added, round_number)])
        self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(written)
        if changes.removed:
            listed = ", ".join(f"'{entry_id}'" for entry_id, _ in changes.removed)
            self._table.delete(f"id IN ({listed})")
        self._keep(round_number)

    def open(self, round_number: int) -> None:
        self._table = lancedb.connect(self._directory / "lance").open_table("bank")
        self._table.checkout(json.loads(self._versions().read_text())[str(round_number)])

    def bytes(self) -> int:
        return bytes_below(self._directory)

    def close(self) -> None:
        self._table = None

    def _keep(self, round_number: int) -> None:
        known = json.loads(self._versions().read_text()) if self._versions().exists() else {}
        self._versions().write_text(json.dumps({**known, str(round_number): self._table.version}))

    def _versions(self) -> Path:
        return self._directory / "versions.json"


def _table(rows: Rows, round_number: int) -> pa.Table:
    width = rows.vectors_ND.shape[1]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.vectors_ND.ravel()), width)
    return pa.table(
        {
            "id": rows.ids,
            "family": rows.families,
            "text": rows.texts,
            "updated_round": pa.array([round_number] * len(rows), pa.int64()),
            "vector": vectors,
        }
    )
