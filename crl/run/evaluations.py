"""Evaluations that a person asked for, kept beside the record: `evaluations/0007-<digest>/`, written once.

    evaluations/0007-1f0c3a…/evaluations.parquet, manifest.json

No stage reads them and no digest of the record depends on them: they may be deleted. Each has a manifest like that of a
stage, so its rows can be held against it, and it names the digests of the stages it was played with: where one of them
was redone since, the evaluation is of another run. Its name has the digest in it: the same evaluation again is the same
directory, any other has one of its own, and nothing is ever overwritten. No lease is needed, for the same reason.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from crl.errors import RecordDamaged
from crl.limits import TABLE_BYTES, read_limited
from crl.paths import quoted
from crl.records import Evaluation, rows_of, table_of
from crl.run.directory import RunDirectory
from crl.run.files import (
    aside,
    disk_errors,
    fsync,
    fsync_tree,
    making,
    move,
    parsed_parquet,
    remove,
    sha256_bytes,
    temporary,
)
from crl.run.manifest import MANIFEST, Digested, FileDigest, Manifest, parse_key
from crl.run.writer import conforming, parquet_bytes

EVALUATIONS = "evaluations"
_FILE = f"{Evaluation.table}.parquet"
_NAME = re.compile(r"^(\d{4,})-[0-9a-f]{12}$")
_STAGE = "evaluate"


@dataclass(frozen=True)
class Kept:
    """One evaluation that was kept."""

    path: Path
    round: int
    rows: list[Evaluation]
    settings: dict[str, Any]
    """What was asked for, as :func:`keep_evaluation` was told."""
    inputs: dict[str, str]
    """Digests of the stages that it read, by `0007/update_actor`."""


def keep_evaluation(
    run: RunDirectory,
    round_number: int,
    rows: Sequence[Evaluation],
    inputs: Mapping[str, str],
    settings: Mapping[str, Any],
) -> tuple[Path, bool]:
    """Keep the rows of an evaluation; where they are, and whether they were not there before.

    A damaged evaluation in their place is set aside, under `damaged/`. Raises DiskFull, RunDirectoryUnusable where the
    run cannot be written.
    """
    table = conforming(Evaluation, table_of(Evaluation, rows), "an evaluation")
    content = parquet_bytes(Evaluation, table)
    digested = Digested(
        stage=_STAGE,
        round=round_number,
        files={_FILE: FileDigest(sha256=sha256_bytes(content), bytes=len(content), rows=len(rows))},
        shared={},
        inputs=dict(sorted(inputs.items())),
        method=run.method_digest,
        seed=run.method.seed,
    )
    about = {"evaluated": datetime.now(UTC).isoformat(), "host": socket.gethostname(), "settings": dict(settings)}
    manifest = Manifest.seal(digested, about)
    target = run.path / EVALUATIONS / f"{round_number:04d}-{manifest.digest[:12]}"
    # A name of its own even within a process, as for decisions: a flow and a command may evaluate in the same moment.
    scratch = temporary(target.with_name(f"{target.name}-{uuid4().hex}"), 0)
    with disk_errors(target), making(target.parent):
        if target.exists():
            try:
                _load(run.path, target)
            except RecordDamaged:
                move(target, aside(run.path, f"{EVALUATIONS}/{target.name}"))
            else:
                return target, False
        try:
            scratch.mkdir()
            (scratch / _FILE).write_bytes(content)
            (scratch / MANIFEST).write_bytes(manifest.render())
            fsync_tree(scratch)
            try:
                scratch.rename(target)
            except OSError:
                if not target.exists():
                    raise
                return target, False  # the same evaluation, kept by somebody else in this moment
        finally:
            remove(scratch)
        fsync(target.parent)
        fsync(run.path)
    return target, True


def kept_evaluations(run: RunDirectory) -> Iterator[Kept | RecordDamaged]:
    """Every evaluation that was kept, in order of round and name; in place of one that cannot be used, why.

    One that was played with other stages than those that the record has now cannot be used either.
    """
    for directory in _directories(run.path):
        try:
            kept = _load(run.path, directory)
            _check_current(run, kept)
        except RecordDamaged as error:
            yield error
        else:
            yield kept


def evaluation_faults(run_path: Path) -> Iterator[tuple[Path, RecordDamaged]]:
    """Kept evaluations whose files are not those that were written."""
    for directory in _directories(run_path):
        try:
            _load(run_path, directory)
        except RecordDamaged as error:
            yield directory, error


def _directories(run_path: Path) -> list[Path]:
    place = Path(run_path) / EVALUATIONS
    return sorted(entry for entry in place.iterdir() if _NAME.match(entry.name)) if place.is_dir() else []


def _load(run_path: Path, directory: Path) -> Kept:
    """Raises RecordDamaged."""
    try:
        manifest = Manifest.load(directory)
    except RecordDamaged as error:
        raise _damaged(run_path, directory, error.found, error.expected) from None
    name = f"{manifest.digested.round:04d}-{manifest.digest[:12]}"
    if name != directory.name:
        raise _damaged(run_path, directory, f"its manifest is that of {name}", directory.name)
    recorded = manifest.digested.files.get(_FILE)
    try:
        content = read_limited(directory / _FILE, TABLE_BYTES)
    except OSError as error:
        raise _damaged(run_path, directory, f"{_FILE} cannot be read: {error.strerror}", None) from None
    found = sha256_bytes(content)
    if recorded is None or found != recorded.sha256:
        raise _damaged(
            run_path, directory, f"{_FILE} has SHA-256 {found}", None if recorded is None else recorded.sha256
        )
    return Kept(
        path=directory,
        round=manifest.digested.round,
        rows=rows_of(Evaluation, parsed_parquet(content)),
        settings=dict(manifest.provenance.get("settings") or {}),
        inputs=manifest.digested.inputs,
    )


def _check_current(run: RunDirectory, kept: Kept) -> None:
    for key, digest in kept.inputs.items():
        place = parse_key(key)
        found = run.manifest(*place).digest if run.is_complete(*place) else "no such stage"
        if found != digest:
            raise RecordDamaged(
                f"{kept.path.relative_to(run.path)} was played with another {key} than the record has: {found}",
                expected=digest,
                where=str(kept.path),
                next_step="the stage was redone since; evaluate again: "
                f"crl evaluate {quoted(run.path)} --round {kept.round}",
            )


def _damaged(run_path: Path, directory: Path, found: str, expected: str | None) -> RecordDamaged:
    return RecordDamaged(
        f"{directory.relative_to(run_path)}: {found}",
        expected=expected or "the file as it was written",
        where=str(directory),
        next_step="no part of the record: move it away (`crl verify` names the command) and evaluate again",
    )
