"""What may be wrong with an exported bank: each of these makes it so in a copy of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Damage = Callable[[Path], None]


def card(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """`provenance.json` with a change."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / "provenance.json").read_text())
        change(content)
        (folder / "provenance.json").write_text(json.dumps(content))

    return damage


def raw(content: bytes) -> Damage:
    """`provenance.json` with other bytes."""
    return lambda folder: (folder / "provenance.json").write_bytes(content) and None  # type: ignore[func-returns-value]


def hashed(folder: Path, name: str, rows: int | None = None) -> None:
    """The card vouches for a table as it is now: what is wrong with it is not found by its digest."""
    content = json.loads((folder / "provenance.json").read_text())
    (told,) = (each for file, each in content["files"].items() if file == name)
    told["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    told["rows"] = told["rows"] if rows is None else rows
    (folder / "provenance.json").write_text(json.dumps(content))


def rows(change: Callable[[list[dict[str, Any]]], Any], table: str = "entries") -> Damage:
    """A table with changed rows, whatever the format of the export; the card vouches for it."""

    def damage(folder: Path) -> None:
        (path,) = folder.glob(f"{table}.*")
        if path.suffix == ".jsonl":
            listed = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            change(listed)
            path.write_text("".join(json.dumps(row) + "\n" for row in listed))
        else:
            whole = pq.read_table(path)
            listed = whole.to_pylist()
            change(listed)
            schema = pa.schema([field.with_nullable(True) for field in whole.schema])
            try:
                made = pa.Table.from_pylist(listed, schema)
                made = made.select([name for name in made.column_names if name in listed[0]])
                if set(listed[0]) - set(schema.names):
                    made = pa.Table.from_pylist(listed)
            except (pa.ArrowException, TypeError, UnicodeEncodeError):
                made = pa.Table.from_pylist(listed)
            pq.write_table(made, path)
        hashed(folder, path.name, len(listed))

    return damage


def cell(column: str, value: Any, table: str = "entries", row: int = 1) -> Damage:
    return rows(lambda listed: listed[row].update({column: value}), table)


def text(value: str) -> Damage:
    """A text whose digest is right, and the card vouches for the table."""
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return rows(lambda listed: listed[1].update(text=value, content_digest=digest))


def content(change: Callable[[bytes], bytes], *, vouched: bool, table: str = "entries") -> Damage:
    def damage(folder: Path) -> None:
        (path,) = folder.glob(f"{table}.*")
        path.write_bytes(change(path.read_bytes()))
        if vouched:
            hashed(folder, path.name)

    return damage


def vectors(change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """Other vectors in a column of the type that the card says, unless their dimension is another."""

    def damage(folder: Path) -> None:
        path = folder / "entries.parquet"
        table = pq.read_table(path)
        made = change(np.array(table["embedding"].to_pylist(), np.float32))
        column = pa.FixedSizeListArray.from_arrays(pa.array(made.ravel(), pa.float32()), made.shape[1])
        pq.write_table(table.set_column(table.column_names.index("embedding"), "embedding", column), path)
        hashed(folder, path.name)

    return damage


def at(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(made: np.ndarray) -> np.ndarray:
        made[1, 3] = value
        return made

    return change


def removed(path: Path) -> Path:
    path.unlink()
    return path


def linked(path: Path, target: str) -> None:
    removed(path).symlink_to(target)


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))
