"""Texts and embeddings of the bank in content-addressed Parquet files, written once.

`bank/segments/<sha256>.parquet` holds texts, `bank/embeddings/<sha256>.parquet` their embeddings, both sorted by
content digest and named by the SHA-256 of their bytes. A snapshot's entries name the two files they need; exactly these
are read, and each is checked against its name. This file makes bytes and reads files; the record writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crl.bank.changes import Change
from crl.errors import RecordDamaged
from crl.protocols import TextVectors
from crl.records import BankText, table_of, vectors_of
from crl.run.files import mending, parsed_parquet, read_checked, sha256_bytes

SEGMENTS = "bank/segments"
EMBEDDINGS = "bank/embeddings"
_BLOCK = 65_536
"""Vectors put in place at a time."""


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
    return sha256_bytes(text.encode())


def new_segments(texts: Iterable[str], embedder: TextVectors) -> Segments:
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
    # No two values of vectors are equal, so a dictionary would be a second copy; their bytes compress better by place.
    vector_content = _parquet(table, use_dictionary=False, use_byte_stream_split=["embedding.list.element"])
    text_content = _parquet(table_of(BankText, rows))
    segment, embedding_file = _name(SEGMENTS, text_content), _name(EMBEDDINGS, vector_content)
    files = {segment: text_content, embedding_file: vector_content}
    return Segments(files, segment, embedding_file, frozenset(ordered))


def with_files(changes: Sequence[Change], segments: Segments, earlier: Mapping[str, tuple[str, str]]) -> list[Change]:
    """Changes whose new rows name the files of their texts: those of earlier rounds (segment and embedding file by
    content digest), else the new ones.

    Raises ValueError for an entry whose text is in neither.
    """
    placed = []
    for change in changes:
        entry = change.after
        if entry is not None and not entry.segment:
            new = (segments.segment, segments.embedding_file) if entry.content_digest in segments.digests else None
            files = earlier.get(entry.content_digest, new)
            if files is None:
                raise ValueError(f"no segment holds the text of entry {entry.entry_id}")
            entry = dataclasses.replace(entry, segment=files[0], embedding_file=files[1])
        placed.append(Change(change.before, entry))
    return placed


def load_texts(run_path: Path, entries: pa.Table) -> dict[str, str]:
    """Texts of rows of `BankEntry` by content digest, from exactly the segments they name.

    Raises RecordDamaged, naming the file, where one is missing, differs from its name, or a text from its digest.
    """
    texts: dict[str, str] = {}
    for path, table, rows in _read(run_path, entries, "segment"):
        found = table.take(rows)
        for digest, text in zip(found["content_digest"].to_pylist(), found["text"].to_pylist(), strict=True):
            if text_digest(text) != digest:
                raise _damaged(run_path, path, f"a text has digest {text_digest(text)}", f"digest {digest}")
            texts[digest] = text
    return texts


def load_embeddings(run_path: Path, entries: pa.Table) -> NDArray[np.float32]:
    """Embeddings [N, D] of rows of `BankEntry` in their order, from exactly the files they name; [0, 0] without rows.

    RecordDamaged as for :func:`load_texts`.
    """
    if not entries.num_rows:
        return np.empty((0, 0), dtype=np.float32)
    vectors_ND: NDArray[np.float32] | None = None
    files = entries["embedding_file"].combine_chunks().dictionary_encode()
    codes = {run_path / relative: code for code, relative in enumerate(files.dictionary.to_pylist())}
    codes_N = files.indices.to_numpy()
    for path, table, rows in _read(run_path, entries, "embedding_file"):
        values = vectors_of(table["embedding"])
        if vectors_ND is None:
            vectors_ND = np.empty((entries.num_rows, values.shape[1]), dtype=np.float32)
        if values.shape[1] != vectors_ND.shape[1]:
            dimensions = sorted({values.shape[1], vectors_ND.shape[1]})
            raise RecordDamaged(f"embeddings of different dimensions: {dimensions}", where=str(run_path))
        places, found = np.flatnonzero(codes_N == codes[path]), rows.to_numpy()
        for at in range(0, len(places), _BLOCK):  # a file may hold the whole bank: no second copy of it
            vectors_ND[places[at : at + _BLOCK]] = values[found[at : at + _BLOCK]]
    assert vectors_ND is not None
    return vectors_ND


def _embedding_schema(dimension: int) -> pa.Schema:
    return pa.schema(
        [
            pa.field("content_digest", pa.string(), nullable=False),
            pa.field("embedding", pa.list_(pa.float32(), dimension), nullable=False),
        ]
    )


def _parquet(table: pa.Table, **encoding: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", **encoding)
    return bytes(sink.getvalue())


def _name(folder: str, content: bytes) -> str:
    return f"{folder}/{sha256_bytes(content)}.parquet"


def _read(run_path: Path, entries: pa.Table, column: str) -> Iterator[tuple[Path, pa.Table, pa.Array]]:
    """Every file that `column` names, checked: its path, its table, and the row of each entry's text in it."""
    names = entries[column].combine_chunks().dictionary_encode()
    codes_N, digests = names.indices.to_numpy(), entries["content_digest"].combine_chunks()
    by_file = np.argsort(codes_N, kind="stable")
    ends = np.cumsum(np.bincount(codes_N, minlength=len(names.dictionary)))
    for code, relative in sorted(enumerate(names.dictionary.to_pylist()), key=lambda pair: pair[1]):
        path = run_path / relative
        table = parsed_parquet(read_checked(run_path, relative, path.stem))
        start = 0 if code == 0 else ends[code - 1]
        wanted = digests.take(pa.array(by_file[start : ends[code]]))
        rows = pc.index_in(wanted, value_set=table["content_digest"].combine_chunks())
        if rows.null_count:
            missing = min(wanted.filter(rows.is_null()).to_pylist())
            raise _damaged(run_path, path, f"it lacks the text with digest {missing}", "every text the snapshot names")
        yield path, table, rows


def _damaged(run_path: Path, path: Path, found: str, expected: str) -> RecordDamaged:
    return RecordDamaged(
        f"bank file {path.name}: {found}", expected=expected, where=str(path), next_step=mending(run_path)
    )
