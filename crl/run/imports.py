"""A bank that an experiment begins with: one file, `imports/bank/<sha256>.parquet`, written once, before round 0.

It holds the entries that come in, their texts and vectors, and in its metadata where they come from. Stage `initialize`
reads it and takes its digest into its manifest, so that the bank of round 0, and all that follows, vouches for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crl.errors import RecordDamaged
from crl.records import ImportedEntry, schema_of, vectors_of
from crl.run.files import disk_errors, fsync, mending, parsed_parquet, read_checked, sha256_bytes, write_atomically
from crl.run.lease import commit_guard

IMPORTS = "imports/bank"
EMBEDDING = "embedding"
"""Column with the unit vectors, where the import has them."""
MORE = {
    "text": pa.string(),
    "operation_id": pa.string(),
    "distillation_id": pa.string(),
    "episode_ids": pa.list_(pa.string()),
    "parents": pa.list_(pa.string()),
}
"""Columns of the file beside those of `ImportedEntry`: what the bank's own rows need."""
_PROVENANCE = b"crl.provenance"


@dataclass(frozen=True)
class BankImport:
    """What an experiment begins with."""

    content: bytes
    """The file."""

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return sha256_bytes(self.content)

    @property
    def relative(self) -> str:
        """Where it is, from the run directory."""
        return f"{IMPORTS}/{self.digest}.parquet"

    def rows(self) -> list[dict[str, Any]]:
        """The entries, the oldest first, without their vectors."""
        names = [*schema_of(ImportedEntry).names, *MORE]
        found: list[dict[str, Any]] = parsed_parquet(self.content, names).to_pylist()
        return found

    def vectors(self) -> NDArray[np.float32] | None:
        """Their unit vectors [N, D]; None where the import has none."""
        if EMBEDDING not in pq.read_schema(pa.BufferReader(self.content)).names:
            return None
        return vectors_of(parsed_parquet(self.content, [EMBEDDING])[EMBEDDING])

    def provenance(self) -> dict[str, Any]:
        """Where they come from, and what was left out."""
        metadata = pq.read_schema(pa.BufferReader(self.content)).metadata or {}
        found: dict[str, Any] = json.loads(metadata[_PROVENANCE])
        return found


def bank_import(
    rows: Sequence[Mapping[str, Any]], vectors_ND: NDArray[np.float32] | None, provenance: Mapping[str, Any]
) -> BankImport:
    """The file for these entries: columns of `ImportedEntry` and :data:`MORE`, and the vectors [N, D] where there are
    some. Equal arguments give equal bytes."""
    more = (pa.field(name, kind, nullable=False) for name, kind in MORE.items())
    schema = pa.schema([*schema_of(ImportedEntry), *more])
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    table = pa.table(columns, schema=schema)
    if vectors_ND is not None:
        flat = pa.array(np.ascontiguousarray(vectors_ND, dtype=np.float32).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, vectors_ND.shape[1])
        table = table.append_column(pa.field(EMBEDDING, vectors.type, nullable=False), vectors)
    text = json.dumps(dict(provenance), sort_keys=True, ensure_ascii=False)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({_PROVENANCE: text.encode()}), sink, compression="zstd")
    return BankImport(bytes(sink.getvalue()))


def imported_files(run_path: Path) -> list[Path]:
    """Files of imports, readable or not; what a killed import left starts with a dot."""
    directory = Path(run_path) / IMPORTS
    entries = directory.iterdir() if directory.is_dir() else iter(())
    return sorted(entry for entry in entries if not entry.name.startswith("."))


def load_import(run_path: Path) -> BankImport | None:
    """What the experiment begins with; None where it begins with an empty bank.

    Raises RecordDamaged where there are several files, or one is not what was written.
    """
    files = imported_files(run_path)
    if not files:
        return None
    if len(files) > 1:
        raise RecordDamaged(
            f"there are {len(files)} imported banks",
            expected="one, which the bank of round 0 is made from",
            where=str(files[1]),
            next_step=mending(run_path),
        )
    return BankImport(read_checked(Path(run_path), f"{IMPORTS}/{files[0].name}", files[0].stem))


def write_import(run_path: Path, content: BankImport, *, token: int) -> Path:
    """Write an import under a lease's token, whole or not at all. Raises StaleAttempt, DiskFull."""
    path = Path(run_path) / content.relative
    with disk_errors(path), commit_guard(run_path, token):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.content, token=token)
        fsync(path.parent.parent)
        fsync(Path(run_path))
    return path
