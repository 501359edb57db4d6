"""A stage made again in memory from the rows that it was made from, and proven before anything of it is used.

A stage that needs neither a language model nor a person is a function of rows that are recorded elsewhere: the bank's
changes follow from the operations, the scores and the bank before; its texts are in the operations; its vectors are
the embedder's. A file counts only if its SHA-256 is the one in the manifest; where the manifest itself is gone, if the
digest of the whole stage is the one that a later stage read.

Only `crl mend` uses this (`mend.py`): readers of the record get an error that names what is damaged. Nothing is
written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crl.bank.segments import EMBEDDINGS, text_digest
from crl.errors import RecordDamaged
from crl.protocols import Services, TextVectors
from crl.records import vectors_of
from crl.rounds.context import MemoryWriter, StageContext
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.files import sha256_bytes, sha256_file
from crl.run.manifest import Digested, FileDigest, key_of
from crl.run.seeds import stage_seed_words
from crl.run.writer import conforming, parquet_bytes


@dataclass
class Remade:
    """A stage made again: what its manifest vouches for, and the files, by run-relative path."""

    digested: Digested
    files: dict[str, bytes] = field(default_factory=dict)


def remake(run: RunDirectory, recipe: Recipe, round_number: int, name: str, services: Services) -> Remade:
    """The files of a stage that are proven to be what they were, those that it shares (texts, vectors) included.

    `services` give what the record does not hold. Raises RecordDamaged where the stage does not follow from rows,
    where a file that it reads is damaged, or where nothing proves what came out.
    """
    stage, key = recipe.stage(run.method, round_number, name), key_of(round_number, name)
    method = run.method_of(round_number, name)
    if stage.run is None or not stage.from_rows:
        raise RecordDamaged(f"stage {key} needs a model or a person: it cannot be made again from rows", where=key)
    writer = MemoryWriter(
        refused=RecordDamaged(
            f"stage {key} writes files that are no tables: they cannot be made again from rows", where=key
        )
    )
    context = StageContext(
        method=method,
        recipe=recipe,
        stage=stage,
        round_number=round_number,
        reader=run,
        writer=writer,
        services=cast(Services, _WithStoredVectors(run.path, services)),
        progress=lambda figures: None,
    )
    stage.run(context)
    tables = {
        f"{row_type.table}.parquet": conforming(row_type, table, key) for row_type, (table,) in writer.tables.items()
    }
    contents = {name: parquet_bytes(table) for name, table in sorted(tables.items())}
    digested = Digested(
        stage=name,
        round=round_number,
        files={
            name: FileDigest(sha256=sha256_bytes(content), bytes=len(content), rows=tables[name].num_rows)
            for name, content in contents.items()
        },
        shared={relative: sha256_bytes(content) for relative, content in sorted(writer.shared.items())},
        inputs=context.digests(),
        method=method.digest(),
        seed=stage_seed_words(method.seed, round_number, name),
    )
    files = {f"rounds/{key}/{name}": content for name, content in contents.items()}
    return _proven(run, key, digested, writer.shared | files)


def _proven(run: RunDirectory, key: str, made: Digested, files: dict[str, bytes]) -> Remade:
    try:
        recorded = run.manifest(made.round, made.stage).digested
    except RecordDamaged as damage:
        if made.digest() not in _read_as(run, key):
            raise RecordDamaged(
                f"stage {key}, made again, has digest {made.digest()}, and nothing says that it is right",
                expected="a later stage that read it with this digest, or its manifest",
                where=key,
            ) from damage
        return Remade(made, files)
    known = {f"rounds/{key}/{name}": file.sha256 for name, file in recorded.files.items()} | recorded.shared
    proven = {name: content for name, content in files.items() if known.get(name) == sha256_bytes(content)}
    return Remade(recorded, proven)


def _read_as(run: RunDirectory, key: str) -> Iterator[str]:
    """Digests under which other stages read a stage."""
    for number in run.rounds():
        for stage in run.complete_stages(number):
            try:
                inputs = run.manifest(number, stage).digested.inputs
            except RecordDamaged:
                continue
            if key in inputs:
                yield inputs[key]


class _WithStoredVectors:
    """The engine's services, but for texts whose vectors are stored: on another machine an embedder may round
    differently, and the bank names its files by their content."""

    def __init__(self, run_path: Path, services: Services) -> None:
        self._run_path, self._services = run_path, services

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services, name)

    def embedder(self) -> TextVectors:
        return _StoredVectors(self._run_path, self._services)


class _StoredVectors:
    """Vectors from the store; those that are not there come from the run's embedder."""

    def __init__(self, run_path: Path, services: Services) -> None:
        self._run_path, self._services = run_path, services
        self.dimension = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services.embedder(), name)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts."""
        if not texts:
            return self._services.embedder().embed(texts)
        digests = [text_digest(text) for text in texts]
        found = self._stored(set(digests))
        missing = [text for text, digest in zip(texts, digests, strict=True) if digest not in found]
        if missing:
            vectors_MD = self._services.embedder().embed(missing)
            found |= {text_digest(text): vector_D for text, vector_D in zip(missing, vectors_MD, strict=True)}
        vectors_BD = np.stack([found[digest] for digest in digests])
        self.dimension = int(vectors_BD.shape[1])
        return vectors_BD

    def _stored(self, wanted: set[str]) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = {}
        for path in sorted((self._run_path / EMBEDDINGS).glob("*.parquet")):
            if sha256_file(path) == path.stem:
                table = pq.read_table(path)
                held = table["content_digest"].to_pylist()
                rows = [row for row, digest in enumerate(held) if digest in wanted - found.keys()]
                values_ND = vectors_of(table["embedding"].take(pa.array(rows, pa.int64()))) if rows else ()
                found |= {held[row]: vector_D for row, vector_D in zip(rows, values_ND, strict=True)}
        return found
