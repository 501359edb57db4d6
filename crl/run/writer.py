"""Writes one stage, or one part of a stage: into a temporary directory, then all at once into the record.

A stage's files are in `rounds/<round>/.tmp-<stage>-<token>` until :meth:`StageWriter.commit` syncs them, writes
`manifest.json` last and renames the directory to `rounds/<round>/<stage>` under the lease's lock. Parts do the same
under `rounds/<round>/.parts-<stage>/`. Content-addressed files (bank texts, embeddings) are outside the stage.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from crl.errors import CrlError, DataCheckFailed, StageAlreadyComplete, StaleAttempt
from crl.records import Row, schema_of, without_defaults
from crl.run import logs
from crl.run.files import (
    disk_errors,
    disk_full,
    fsync,
    fsync_tree,
    hash_soon,
    remove,
    sha256_bytes,
    sha256_once,
    sha256_or_size,
    tells_of_full_disk,
    write_atomically,
)
from crl.run.lease import check_token, commit_guard
from crl.run.manifest import MANIFEST, Digested, FileDigest, Manifest, key_of

Inputs = Mapping[str, str] | Iterable[tuple[int, str]]
_STAGE_NAME = re.compile(r"^[a-z][a-z0-9_]*$")
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "version": "2.6",
    "data_page_version": "1.0",
    "row_group_size": 131_072,
}


class StageWriter:
    """Context manager. Leaving it without a commit, or with an error, removes what was written."""

    def __init__(
        self,
        run_path: Path,
        round_number: int,
        stage: str,
        *,
        token: int,
        target: Path,
        resolve: Callable[[int, str], str],
        shared_by_parts: Callable[[], Mapping[str, str]] = dict,
        parts: Path | None = None,
    ) -> None:
        """`resolve` gives the digest of a stage; `shared_by_parts` and `parts` belong to a stage made of parts."""
        if not _STAGE_NAME.match(stage):
            raise CrlError(f"{stage!r} is not a stage name", expected="lowercase letters, digits and _")
        self.run_path, self.round, self.stage, self.token = run_path, round_number, stage, token
        self._target, self._resolve = target, resolve
        self._shared_by_parts, self._parts = shared_by_parts, parts
        self._temporary = target.parent / f".tmp-{target.name}-{token}"
        self._tables: dict[type[Row], pa.Table] = {}
        self._rows: dict[str, int] = {}
        self._shared: dict[str, str] = {}
        self._started = datetime.now(UTC)
        self._clock, self._processor = time.monotonic(), time.process_time()
        check_token(run_path, token)
        if target.exists():
            raise self._complete_already()
        with disk_errors(self._temporary):
            remove(self._temporary)
            self._temporary.mkdir(parents=True)

    @property
    def directory(self) -> Path:
        """The temporary directory; files a stage puts there are digested and committed with it."""
        return self._temporary

    def write(self, row_type: type[Row], table: pa.Table) -> None:
        """Write the rows of one type as `<table>.parquet`; once per type. Equal rows give equal bytes.

        Raises DataCheckFailed if the table does not have the schema of the type, DiskFull, StaleAttempt.
        """
        name = f"{row_type.table}.parquet"
        if row_type in self._tables:
            raise CrlError(f"{name} was written twice", expected="one write per row type", where=self._where())
        written = conforming(row_type, table, self._where())
        with disk_errors(self._target), self._stale_if_swept():
            pq.write_table(without_defaults(row_type, written), self._temporary / name, **_PARQUET)
        self._tables[row_type], self._rows[name] = written, written.num_rows

    def share(self, relative: str, content: bytes) -> None:
        """Write a content-addressed file at a path inside the run directory; its name holds its SHA-256.

        One that is there already is left, unless it was damaged. Raises DiskFull.
        """
        place, digest = PurePosixPath(relative), sha256_bytes(content)
        if place.is_absolute() or ".." in place.parts or len(place.parts) < 2 or place.parts[0] == "rounds":
            raise CrlError(f"{relative!r} is not a place for a shared file", expected="a path such as bank/segments/…")
        if digest not in place.name:
            raise CrlError(f"{relative!r} is not named after its content", expected=f"a name that holds {digest}")
        path = self.run_path / place
        with disk_errors(path):
            if not path.is_file() or sha256_or_size(path) != digest:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, content, token=self.token)
        self._shared[place.as_posix()] = digest

    def tables(self) -> dict[type[Row], pa.Table]:
        """What was written so far, by row type."""
        return dict(self._tables)

    def commit(
        self, *, inputs: Inputs, method_digest: str, seed: int | Sequence[int], provenance: Mapping[str, Any]
    ) -> Manifest:
        """Make the stage part of the record, in one rename. Returns its manifest.

        `inputs` are the stages read: a mapping from `0007/collect` to digest, or (round, stage) pairs whose digests
        are looked up. Raises StaleAttempt if a newer attempt holds the lease, StageAlreadyComplete, DiskFull.
        """
        with disk_errors(self._target), self._stale_if_swept():
            digests = dict(inputs) if isinstance(inputs, Mapping) else self._digests_of(inputs)
            hash_soon(path for path in self._temporary.rglob("*") if path.is_file() and not path.is_symlink())
            fsync_tree(self._temporary)
            for name in sorted({parent for file in self._shared for parent in PurePosixPath(file).parents}):
                fsync(self.run_path / name)  # sharing may have made `bank/` and what is in it
            digested = Digested(
                stage=self.stage,
                round=self.round,
                files=self._files(),
                shared=dict(sorted({**self._shared_by_parts(), **self._shared}.items())),
                inputs=dict(sorted(digests.items())),
                method=method_digest,
                seed=seed if isinstance(seed, int) else [int(word) for word in seed],
            )
            with commit_guard(self.run_path, self.token):
                if self._target.exists():
                    raise self._complete_already()
                manifest = Manifest.seal(digested, self._provenance(provenance))
                path = self._temporary / MANIFEST
                path.write_bytes(manifest.render())
                fsync(path)
                fsync(self._temporary)
                self._temporary.rename(self._target)
                self._sync_parents()
        if self._parts is not None:
            remove(self._parts)
        return manifest

    def __enter__(self) -> StageWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Libraries that write checkpoints hide the system's error: a disk without a free block is the cause then.
        full = isinstance(error, Exception) and not isinstance(error, CrlError)
        full = full and error is not None and (tells_of_full_disk(error) or _no_block_is_free(self._target.parent))
        remove(self._temporary)
        if full:
            raise disk_full(self._target) from error

    def _files(self) -> dict[str, FileDigest]:
        found = {}
        for parent, _, names in os.walk(self._temporary):
            for name in names:
                path = Path(parent, name)
                relative = path.relative_to(self._temporary).as_posix()
                if path.is_symlink() or not path.is_file():
                    raise CrlError(
                        f"the stage wrote {relative}, which is a link or not a file",
                        expected="plain files",
                        where=self._where(),
                    )
                found[relative] = FileDigest(
                    sha256=sha256_once(path), bytes=path.stat().st_size, rows=self._rows.get(relative)
                )
        return dict(sorted(found.items()))

    def _provenance(self, given: Mapping[str, Any]) -> dict[str, Any]:
        own = {
            "started": self._started.isoformat(),
            "committed": datetime.now(UTC).isoformat(),
            "seconds": round(time.monotonic() - self._clock, 3),
            "processor_seconds": round(time.process_time() - self._processor, 3),
            logs.NOTED: logs.marks(self.run_path),
            "memory_bytes": psutil.Process().memory_info().rss,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "token": self.token,
        }
        # Under the lease's lock, so the numbers of a round give the order of its commits.
        return {**own, **given, "sequence": 1 + _last_sequence(self._target.parent)}

    def _digests_of(self, inputs: Iterable[tuple[int, str]]) -> dict[str, str]:
        return {key_of(number, stage): self._resolve(number, stage) for number, stage in inputs}

    def _sync_parents(self) -> None:
        directory = self._target.parent
        while True:
            fsync(directory)
            if directory == self.run_path:
                return
            directory = directory.parent

    def _stale_if_swept(self) -> _StaleIfSwept:
        return _StaleIfSwept(self)

    def _complete_already(self) -> StageAlreadyComplete:
        return StageAlreadyComplete(
            f"stage {self.stage} of round {self.round} is complete already",
            expected="a stage to be committed once",
            where=str(self._target),
            next_step="complete stages are skipped by `crl resume`; `crl redo` sets one aside",
        )

    def _where(self) -> str:
        return f"round {self.round}, stage {self.stage}"


class _StaleIfSwept:
    """A newer attempt sweeps the temporary directories of older ones: a missing directory then means a lost lease."""

    def __init__(self, writer: StageWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not self._writer.directory.exists():
            try:
                check_token(self._writer.run_path, self._writer.token)
            except StaleAttempt as stale:
                raise stale from error


def parquet_bytes(row_type: type[Row], table: pa.Table) -> bytes:
    """What :meth:`StageWriter.write` writes of a table that conforms."""
    sink = pa.BufferOutputStream()
    pq.write_table(without_defaults(row_type, table), sink, **_PARQUET)
    return bytes(sink.getvalue())


def conforming(row_type: type[Row], table: pa.Table, where: str) -> pa.Table:
    """A table with exactly the schema of its type, as it is written. Raises DataCheckFailed naming `where`."""
    schema = schema_of(row_type)
    if sorted(table.column_names) != sorted(schema.names):
        raise _breach(row_type, f"has columns {table.column_names}", f"columns {schema.names}", where)
    try:
        # Casting refuses nulls where the type has none. One chunk per column: how the caller's table was put together
        # must not show in the bytes.
        fitting = table.select(schema.names).cast(schema).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise _breach(row_type, f"does not fit its schema: {error}", str(schema.names), where) from error
    return fitting


def _breach(row_type: type[Row], found: str, expected: str, where: str) -> DataCheckFailed:
    return DataCheckFailed(
        f"table {row_type.table} {found}",
        expected=expected,
        where=where,
        next_step="nothing was committed; the stage that made the rows has to be corrected",
    )


def _last_sequence(round_directory: Path) -> int:
    last = 0
    for entry in round_directory.iterdir():
        if entry.is_dir() and not entry.name.startswith("."):
            try:
                last = max(last, int(Manifest.load(entry).provenance.get("sequence", 0)))
            except (CrlError, TypeError, ValueError):
                continue
    return last


def _no_block_is_free(directory: Path) -> bool:
    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return room.f_bavail == 0
