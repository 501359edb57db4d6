"""The logs beside the record, which only grow: is each one still what it was when a stage was committed?

The journal, the list of pruned checkpoints and that of the trackers are in no digest, since they hold clock times. So
the manifest of a stage notes, beside its digest, how many bytes each of them had and their SHA-256. A log that was
deleted, cut or changed up to the last committed stage is then named, with the stage that saw it otherwise. What a log
got after that stage, no manifest knows.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

JOURNAL = "journal.jsonl"
PRUNED = "pruned.jsonl"
TRACKERS = "trackers.jsonl"
LOGS = (JOURNAL, PRUNED, TRACKERS)
NOTED = "logs"
"""Their key in the provenance of a stage."""
_BLOCK = 1 << 20

_read: dict[Path, tuple[int, int, Any]] = {}
"""Of each log that this process has read: its inode, how far it was read, and the hash of that."""
Seen = tuple[int, str, str]
"""Bytes that a log had, their SHA-256, and the stage that saw it."""


def marks(run_path: Path) -> dict[str, dict[str, int | str]]:
    """Bytes and SHA-256 of every log that is there, as they are now. A process reads only what came since last time."""
    found: dict[str, dict[str, int | str]] = {}
    for name in LOGS:
        with contextlib.suppress(OSError):
            found[name] = _mark(Path(os.path.abspath(run_path)) / name)  # noqa: PTH100 - a link stays one
    return found


def differing(path: Path, seen: Iterable[Seen]) -> str | None:
    """What is wrong with a log, in words; None where it begins with everything that the stages saw."""
    ordered = sorted(seen)
    if not ordered:
        return None
    size, last = ordered[-1][0], ordered[-1][2]
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "it is no file"
            digest = hashlib.sha256()
            for bytes_, sha256, stage in ordered:
                for block in _blocks(file, bytes_ - file.tell()):
                    digest.update(block)
                if file.tell() < bytes_:
                    return f"it was cut: it has {file.tell()} bytes, and had {size} when stage {last} was committed"
                if digest.copy().hexdigest() != sha256:
                    return f"it was changed: its first {bytes_} bytes are not those that stage {stage} saw"
    except OSError as error:
        gone = "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read: {error.strerror}"
        return f"{gone}; it had {size} bytes when stage {last} was committed"
    return None


def _mark(path: Path) -> dict[str, int | str]:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # an append that fails takes back what it wrote, and holds the lock until then
        known = os.fstat(file.fileno())
        if not stat.S_ISREG(known.st_mode):
            raise OSError(f"{path.name} is no file")
        inode, at, digest = _read.get(path, (known.st_ino, 0, hashlib.sha256()))
        if inode != known.st_ino or at > known.st_size:
            at, digest = 0, hashlib.sha256()
        file.seek(at)
        for block in _blocks(file, known.st_size - at):
            digest.update(block)
        _read[path] = known.st_ino, file.tell(), digest
        return {"bytes": file.tell(), "sha256": digest.copy().hexdigest()}


def _blocks(file: Any, count: int) -> Iterator[bytes]:
    while count > 0 and (block := file.read(min(count, _BLOCK))):
        count -= len(block)
        yield block
