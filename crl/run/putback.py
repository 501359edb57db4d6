"""Putting files of the record back: what lay in their place is kept under `damaged/<n>/`, nothing is deleted.

Whoever calls this has proven that the content is the one that was committed (`crl/recipes/recovery.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from crl.run.files import aside, disk_full_as_error, fsync, fsync_tree, remove, temporary
from crl.run.journal import Journal
from crl.run.lease import commit_guard
from crl.run.manifest import key_of


def put_back(run_path: Path, contents: Mapping[str, bytes], *, token: int) -> Path | None:
    """Put files, by run-relative path, into their places; returns where the damaged ones are kept, None for none.

    A crash in between leaves each file damaged, missing or whole. Raises StaleAttempt if `token` does not hold the
    lease, DiskFull.
    """
    kept = aside(run_path, "")
    with commit_guard(run_path, token):
        for relative, content in contents.items():
            path = run_path / relative
            with disk_full_as_error(path):
                scratch = _written(run_path, path, content, token)
                if path.exists():
                    (kept / relative).parent.mkdir(parents=True, exist_ok=True)
                    path.rename(kept / relative)
                path.parent.mkdir(parents=True, exist_ok=True)
                scratch.rename(path)
                fsync(path.parent)
        where = kept.relative_to(run_path).as_posix() if kept.is_dir() else None
        Journal(run_path).record("mended", token=token, files=list(contents), directory=where)
    return kept if kept.is_dir() else None


def put_back_stage(run_path: Path, round_number: int, stage: str, files: Mapping[str, bytes], *, token: int) -> None:
    """Put a stage's whole directory back in one rename: a stage that exists is complete. Files by name within it.

    Raises StaleAttempt if `token` does not hold the lease, DiskFull.
    """
    target = run_path / "rounds" / key_of(round_number, stage)
    scratch = temporary(target, token)
    try:
        with commit_guard(run_path, token), disk_full_as_error(target):
            scratch.mkdir(parents=True)
            for name, content in files.items():
                (scratch / name).write_bytes(content)
            fsync_tree(scratch)
            scratch.rename(target)
            fsync(target.parent)
            fsync(target.parent.parent)
            written = [(target / name).relative_to(run_path).as_posix() for name in files]
            Journal(run_path).record("mended", token=token, files=written, directory=None)
    finally:
        remove(scratch)


def _written(run_path: Path, path: Path, content: bytes, token: int) -> Path:
    """The content in a temporary file beside the stage's directory: where a later attempt sweeps."""
    beside = path.parent if path.is_relative_to(run_path / "bank") else path.parent.parent
    beside.mkdir(parents=True, exist_ok=True)
    scratch = temporary(beside / path.name, token)
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return scratch
