"""A stage made again in memory from the rows that it reads: what it would write, and how that differs from the record.

For `crl stage`, which shows any stage to whoever looks for a fault, and for `crl mend` (`mend.py`), which uses only
what is proven. A stage that needs neither a language model nor a person is a function of rows that are recorded
elsewhere: the bank's changes follow from the operations, the scores and the bank before; its texts are in the
operations; its vectors are the embedder's. A file counts as proven only if its SHA-256 is the one in the manifest;
where the manifest itself is gone, if the digest of the whole stage is the one that a later stage read.

Nothing of the record is written here: readers of a damaged one get an error that names what is damaged.
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
from crl.config import Method
from crl.errors import RecordDamaged
from crl.protocols import Services, TextVectors
from crl.records import Row, schema_of, vectors_of
from crl.rounds.context import MemoryWriter, Progress, StageContext
from crl.rounds.stage import Recipe, Stage
from crl.run.directory import RunDirectory, manifests
from crl.run.files import sha256_bytes, sha256_or_size
from crl.run.manifest import Digested, FileDigest, Manifest, key_of
from crl.run.seeds import stage_seed_words
from crl.run.writer import conforming, parquet_bytes


@dataclass
class Made:
    """What a stage writes."""

    stage: Stage
    method: Method
    tables: dict[type[Row], pa.Table]
    """By row type, in the order that the stage declares, each with the schema of its type."""
    shared: dict[str, bytes]
    """Files that several stages share (texts, vectors), by run-relative path."""
    inputs: dict[str, str]
    """Digest of every stage that was read, by `0007/distill`."""


def make(
    run: RunDirectory,
    recipe: Recipe,
    round_number: int,
    name: str,
    services: Services,
    *,
    directory: Path | None = None,
    refused: Exception | None = None,
    progress: Progress = lambda metrics: None,
) -> Made:
    """Run a stage in this process, all of its parts in order, and keep what it writes in memory.

    `directory` is where it may put files of its own (a checkpoint); one that asks without there being one raises
    `refused`. Raises BadInput for a stage that the round does not have, and whatever the stage raises.
    """
    stage, key = recipe.stage(run.method, round_number, name), key_of(round_number, name)
    method = run.method_of(round_number, name)  # of a round that was inherited, the parent's
    writer = MemoryWriter(directory, refused=refused)
    context = StageContext(
        method=method,
        recipe=recipe,
        stage=stage,
        round_number=round_number,
        reader=run,
        writer=writer,
        services=services,
        progress=progress,
    )
    if stage.run is not None:
        stage.run(context)
    elif stage.parts is not None and stage.run_part is not None:
        for part in range(stage.parts(context)):
            stage.run_part(context, part)
    tables = {}
    for row_type in dict.fromkeys([*stage.writes, *writer.tables]):
        written = writer.tables.get(row_type)
        if written or stage.parts is not None:
            joined = pa.concat_tables(written) if written else schema_of(row_type).empty_table()
            tables[row_type] = conforming(row_type, joined, key)
    return Made(stage, method, tables, writer.shared, context.digests())


def missing_reads(run: RunDirectory, recipe: Recipe, round_number: int, name: str) -> list[str]:
    """Stages that a stage reads and that are not there, as `0007/distill`."""
    stage = recipe.stage(run.method, round_number, name)
    places = recipe.inputs(run.method, round_number, stage)
    return sorted({key_of(*place) for place in places if not run.is_complete(*place)})


def differences(row_type: type[Row], made: pa.Table, recorded: pa.Table) -> list[str]:
    """How rows differ from recorded ones: by key and column, `made | recorded`; none where they are equal."""
    if made.equals(recorded):
        return []
    rows, before = (_by_key(row_type, table) for table in (made, recorded))
    found = []
    for key in dict.fromkeys([*rows, *before]):
        ours, theirs = rows.get(key), before.get(key)
        if ours is None or theirs is None:
            found.append(f"{key}: only in {'the record' if ours is None else 'what was made'}")
            continue
        for column in ours:
            pair = repr(ours[column]), repr(theirs[column])  # as text: NaN is equal to itself there
            if pair[0] != pair[1]:
                found.append(f"{key}: {column}: {' | '.join(pair)}")
    if not found and list(rows) != list(before):
        found.append("the same rows in another order")
    return found


def _by_key(row_type: type[Row], table: pa.Table) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for row in table.to_pylist():
        key = ", ".join(f"{column} {row[column]}" for column in row_type.rules.key)
        while key in rows:  # a rule is broken, which others say
            key += " (again)"
        rows[key] = row
    return rows


@dataclass
class Remade:
    """A stage made again and proven: what its manifest vouches for, and the files, by run-relative path."""

    digested: Digested
    files: dict[str, bytes] = field(default_factory=dict)


def remake(run: RunDirectory, recipe: Recipe, round_number: int, name: str, services: Services) -> Remade:
    """The files of a stage that are proven to be what they were, those that it shares (texts, vectors) included.

    `services` give what the record does not hold. Raises RecordDamaged where the stage does not follow from rows,
    where a file that it reads is damaged, or where nothing proves what came out.
    """
    stage, key = recipe.stage(run.method, round_number, name), key_of(round_number, name)
    if not stage.from_rows:
        raise RecordDamaged(f"stage {key} needs a model or a person: it cannot be made again from rows", where=key)
    no_tables = RecordDamaged(
        f"stage {key} writes files that are no tables: they cannot be made again from rows", where=key
    )
    stored = cast(Services, _WithStoredVectors(run.path, services))
    made = make(run, recipe, round_number, name, stored, refused=no_tables)
    tables = {f"{row_type.table}.parquet": (row_type, table) for row_type, table in made.tables.items()}
    contents = {name: parquet_bytes(*each) for name, each in sorted(tables.items())}
    digested = Digested(
        stage=name,
        round=round_number,
        files={
            name: FileDigest(sha256=sha256_bytes(content), bytes=len(content), rows=tables[name][1].num_rows)
            for name, content in contents.items()
        },
        shared={relative: sha256_bytes(content) for relative, content in sorted(made.shared.items())},
        inputs=made.inputs,
        method=made.method.digest(),
        seed=stage_seed_words(made.method.seed, round_number, name),
    )
    files = {f"rounds/{key}/{name}": content for name, content in contents.items()}
    return _proven(run, key, digested, made.shared | files)


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

    def _named(self) -> dict[str, str]:
        """SHA-256 of the files of vectors that a stage wrote, by run-relative path: others say nothing."""
        known = (each for each in manifests(self._run_path).values() if isinstance(each, Manifest))
        shared = (item for manifest in known for item in manifest.digested.shared.items())
        return {name: digest for name, digest in shared if name.startswith(f"{EMBEDDINGS}/")}

    def _stored(self, wanted: set[str]) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = {}
        for relative, digest in sorted(self._named().items()):
            path = self._run_path / relative
            if path.is_file() and sha256_or_size(path) == digest:
                table = pq.read_table(path)
                held = table["content_digest"].to_pylist()
                rows = [row for row, digest in enumerate(held) if digest in wanted - found.keys()]
                values_ND = vectors_of(table["embedding"].take(pa.array(rows, pa.int64()))) if rows else ()
                found |= {held[row]: vector_D for row, vector_D in zip(rows, values_ND, strict=True)}
        return found
