"""Texts and embeddings of the bank in content-addressed Parquet files, written once.

`bank/segments/<sha256>.parquet` holds texts, `bank/embeddings/<sha256>.parquet` their embeddings, both sorted by
content digest and named by the SHA-256 of their bytes. A snapshot's entries name the two files they need; exactly these
are read, and each is checked against its name. This file makes bytes and reads files; the record writes them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crl.errors import RecordDamaged
from crl.protocols import Embedder
from crl.records import BankEntry, BankText, schema_of, table_of

SEGMENTS = "bank/segments"
EMBEDDINGS = "bank/embeddings"


@dataclasses.dataclass(frozen=True, slots=True)
class Segments:
    """The new files of one round: none where no text is new."""

    files: dict[str, bytes]
    """Content by run-relative path."""
    segment: str
    """Path of the texts; empty where there are none."""
    embedding_file: str
    """Path of the embeddings; empty where there are none."""
    digests: frozenset[str]
    """Texts they hold."""


def text_digest(text: str) -> str:
    """SHA-256 of the text in UTF-8: the name of a version."""
    return hashlib.sha256(text.encode()).hexdigest()


def new_segments(texts: Iterable[str], embedder: Embedder) -> Segments:
    """Files for texts that no earlier segment of the snapshot holds. Equal texts and embedder give equal bytes."""
    by_digest = {text_digest(text): text for text in texts}
    if not by_digest:
        return Segments({}, "", "", frozenset())
    ordered = sorted(by_digest)
    rows = [BankText(content_digest=digest, text=by_digest[digest]) for digest in ordered]
    vectors_ND = np.ascontiguousarray(embedder.embed([row.text for row in rows]), dtype=np.float32)
    if vectors_ND.shape != (len(rows), embedder.dimension):
        raise ValueError(f"the embedder gave shape {vectors_ND.shape}, expected {(len(rows), embedder.dimension)}")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel(), pa.float32()), embedder.dimension)
    table = pa.table([pa.array(ordered, pa.string()), vectors], schema=_embedding_schema(embedder.dimension))
    text_content, vector_content = _parquet(table_of(BankText, rows)), _parquet(table)
    segment, embedding_file = _name(SEGMENTS, text_content), _name(EMBEDDINGS, vector_content)
    files = {segment: text_content, embedding_file: vector_content}
    return Segments(files, segment, embedding_file, frozenset(ordered))


def place(entries: Sequence[BankEntry], segments: Segments) -> list[BankEntry]:
    """Entries that :func:`crl.bank.consolidate.consolidate` left without files, now pointing at the new ones.

    Raises ValueError for an entry whose text is in neither an earlier file nor the new ones.
    """
    placed = []
    for entry in entries:
        if not entry.segment:
            if entry.content_digest not in segments.digests:
                raise ValueError(f"no segment holds the text of entry {entry.entry_id}")
            entry = dataclasses.replace(entry, segment=segments.segment, embedding_file=segments.embedding_file)
        placed.append(entry)
    return placed


def load_texts(run_path: Path, entries: Sequence[BankEntry]) -> dict[str, str]:
    """Texts of the entries by content digest, from exactly the segments they name.

    Raises RecordDamaged, naming the file, where one is missing, differs from its name, or a text from its digest.
    """
    texts: dict[str, str] = {}

    def take(table: pa.Table, wanted: set[str], path: Path) -> None:
        for digest, text in zip(table["content_digest"].to_pylist(), table["text"].to_pylist(), strict=True):
            if digest in wanted:
                if text_digest(text) != digest:
                    raise _damaged(path, f"a text has digest {text_digest(text)}", f"digest {digest}")
                texts[digest] = text

    _read(run_path, [(entry.segment, entry.content_digest) for entry in entries], schema_of(BankText), take)
    return texts


def load_embeddings(run_path: Path, entries: Sequence[BankEntry]) -> NDArray[np.float32]:
    """Embeddings [N, D] of the entries in their order, from exactly the files they name; [0, 0] without entries.

    Raises RecordDamaged as :func:`load_texts` does.
    """
    vectors: dict[str, NDArray[np.float32]] = {}

    def take(table: pa.Table, wanted: set[str], path: Path) -> None:
        column = table["embedding"].combine_chunks()
        values_ND = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
        for row, digest in enumerate(table["content_digest"].to_pylist()):
            if digest in wanted:
                vectors[digest] = values_ND[row]

    _read(run_path, [(entry.embedding_file, entry.content_digest) for entry in entries], None, take)
    if not entries:
        return np.empty((0, 0), dtype=np.float32)
    dimensions = {len(vector) for vector in vectors.values()}
    if len(dimensions) > 1:
        raise RecordDamaged(f"embeddings of different dimensions: {sorted(dimensions)}", where=str(run_path))
    return np.stack([vectors[entry.content_digest] for entry in entries])


def _embedding_schema(dimension: int) -> pa.Schema:
    return pa.schema(
        [
            pa.field("content_digest", pa.string(), nullable=False),
            pa.field("embedding", pa.list_(pa.float32(), dimension), nullable=False),
        ]
    )


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _name(folder: str, content: bytes) -> str:
    return f"{folder}/{hashlib.sha256(content).hexdigest()}.parquet"


def _read(
    run_path: Path,
    needs: Sequence[tuple[str, str]],
    schema: pa.Schema | None,
    take: Callable[[pa.Table, set[str], Path], None],
) -> None:
    """Read each file of `needs` (run-relative path, content digest) once, checked, and hand it to `take`."""
    wanted: dict[str, set[str]] = {}
    for relative, digest in needs:
        wanted.setdefault(relative, set()).add(digest)
    for relative in sorted(wanted):
        path = run_path / relative
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _damaged(path, f"the file cannot be read ({error.strerror})", "the file") from error
        found = hashlib.sha256(content).hexdigest()
        if found != path.stem:
            raise _damaged(path, f"its content has digest {found}", f"digest {path.stem}")
        table = pq.read_table(pa.BufferReader(content), schema=schema)
        missing = wanted[relative] - set(table["content_digest"].to_pylist())
        if missing:
            raise _damaged(path, f"it lacks the text with digest {min(missing)}", "every text the snapshot names")
        take(table, wanted[relative], path)


def _damaged(path: Path, found: str, expected: str) -> RecordDamaged:
    return RecordDamaged(
        f"bank file {path.name}: {found}",
        expected=expected,
        where=str(path),
        next_step="run `crl verify` on the run: it names the command that mends it",
    )
