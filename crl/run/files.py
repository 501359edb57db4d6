"""File primitives of the record: atomic writes, syncing, hashing, temporary names and a full disk as our own error.

Temporary files and directories are named `.tmp-<name>-[<pid>-]<token>`: whoever holds a later token may remove them
(:func:`sweep`). Token 0 stands for writers without a lease (experiment file, cache): theirs go with their process.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from crl.errors import CrlError, DiskFull, RecordDamaged

_TEMPORARY = re.compile(r"^\.tmp-.*?(?:-(?P<pid>\d+))?-(?P<token>\d+)$")
_PARTS = ".parts-"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded", "os error 28")


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value that digests are taken over."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def sha256_bytes(content: bytes) -> str:
    """SHA-256 of bytes, as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mending(run_path: Path) -> str:
    """What to do about damage that a reader came upon."""
    return (
        f"`crl mend {shlex.quote(str(run_path))}` makes it again, or names the stage that `crl redo` takes back; "
        "`crl verify` lists everything that is damaged"
    )


def read_checked(run_path: Path, relative: str, sha256: str) -> bytes:
    """Content of a file of the record. Raises RecordDamaged, with what mends it, where it is not the recorded one."""
    path = run_path / relative
    try:
        content = path.read_bytes()
        found = sha256_bytes(content)
    except OSError as error:
        content, found = b"", f"no readable file ({error.strerror})"
    if found != sha256:
        raise RecordDamaged(
            f"{relative} is not the file that was committed: {found}",
            expected=sha256,
            where=str(path),
            next_step=mending(run_path),
        )
    return content


def temporary(path: Path, token: int) -> Path:
    """Sibling of `path` to write into before it is renamed; unique to this process and attempt."""
    return path.parent / f".tmp-{path.name}-{os.getpid()}-{token}"


def fsync(path: Path) -> None:
    """Sync a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(directory: Path) -> None:
    """Sync every file and directory below and including `directory`, children first."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            fsync(Path(parent, name))
        fsync(Path(parent))


def write_atomically(path: Path, content: bytes, *, token: int = 0) -> None:
    """Write a whole file so that a reader, or a crash, sees the old content or the new one. Raises DiskFull."""
    scratch = temporary(path, token)
    with disk_full_as_error(path):
        try:
            with scratch.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        fsync(path.parent)


def tells_of_full_disk(error: BaseException) -> bool:
    """Whether an exception, or one it came from, says that no space was left (libraries wrap it differently)."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if any(text in str(seen) for text in _FULL_TEXTS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def disk_full(where: Path) -> DiskFull:
    """The error for a disk that filled up while something was written at `where`."""
    return DiskFull(
        "no space was left on the disk while the record was written; everything committed before is intact",
        where=str(where),
        next_step="free some space, then `crl resume` makes the interrupted stage again",
    )


@contextmanager
def disk_full_as_error(where: Path) -> Iterator[None]:
    """Raise DiskFull where the block failed because the disk is full; other errors pass unchanged."""
    try:
        yield
    except CrlError:
        raise
    except Exception as error:
        if tells_of_full_disk(error):
            raise disk_full(where) from error
        raise


def _left_behind(name: str, token: int) -> bool:
    match = _TEMPORARY.match(name)
    if match is None:
        return False
    owner = int(match["token"])
    if owner:
        return owner < token
    return match["pid"] is None or not psutil.pid_exists(int(match["pid"]))


def aside(run_path: Path, relative: str) -> Path:
    """A free place under `damaged/<n>/` where something damaged is kept: the record deletes nothing that it does not
    understand."""
    number = 1
    while (run_path / "damaged" / str(number)).exists():
        number += 1
    return run_path / "damaged" / str(number) / relative


def remove(path: Path) -> None:
    """Remove a file or a directory with all that is in it; no error if it is gone already."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep(run_path: Path, token: int) -> list[Path]:
    """Remove what attempts before `token` left unfinished, and parts of stages that were committed; returns both.

    Looks only where the record writes temporary things; finished parts of an unfinished stage stay, they are reused.
    """
    places = [run_path, run_path / "decisions", run_path / "imports" / "bank", *_directories(run_path / "cache")]
    places += _below(run_path / "bank")
    parts = []
    for round_directory in _directories(run_path / "rounds"):
        places.append(round_directory)
        parts += [entry for entry in _directories(round_directory) if entry.name.startswith(_PARTS)]
    doomed = [entry for entry in parts if (entry.parent / entry.name.removeprefix(_PARTS)).exists()]
    places += [run_path / "cache", *(entry for entry in parts if entry not in doomed)]
    for place in places:
        if place.is_dir():
            doomed += [entry for entry in sorted(place.iterdir()) if _left_behind(entry.name, token)]
    for entry in doomed:
        remove(entry)
    return doomed


def _directories(place: Path) -> list[Path]:
    return sorted(entry for entry in place.iterdir() if entry.is_dir()) if place.is_dir() else []


def _below(place: Path) -> list[Path]:
    return [Path(parent) for parent, _, _ in os.walk(place)]
