"""Putting files of the record back: what was in their place is kept under `damaged/<n>/`, nothing is deleted.

Whoever calls this has proven that the content is the one that was committed (`crl/audit/recovery.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from crl.run.files import aside, disk_errors, fsync, move, temporary
from crl.run.journal import Journal
from crl.run.lease import commit_guard


def put_back(run_path: Path, contents: Mapping[str, bytes], *, token: int) -> Path | None:
    """Put files, by run-relative path, into their places in order; returns where the damaged ones are kept, None for
    none.

    A crash in between leaves each file damaged, missing or whole: with the manifest last, a stage whose directory was
    gone is found damaged until all of it is back. Raises StaleAttempt if `token` does not hold the lease, DiskFull.
    """
    kept = aside(run_path, "")
    with commit_guard(run_path, token):
        for relative, content in contents.items():
            path = run_path / relative
            # Written beside the stage's directory, where a later attempt sweeps.
            beside = path.parent.parent if path.is_relative_to(run_path / "rounds") else path.parent
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                scratch = temporary(beside / path.name, token)
                try:
                    scratch.write_bytes(content)
                    fsync(scratch)
                    if path.exists():
                        move(path, kept / relative)
                    scratch.rename(path)
                except OSError:
                    scratch.unlink(missing_ok=True)
                    raise
                fsync(path.parent)
                fsync(path.parent.parent)
        where = kept.relative_to(run_path).as_posix() if kept.is_dir() else None
        Journal(run_path).record("mended", token=token, files=list(contents), directory=where)
    return kept if kept.is_dir() else None
