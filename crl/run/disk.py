"""Room on the disk: refused before work starts rather than found out in the middle of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from crl.errors import NotEnoughDisk
from crl.run.files import unwritable

GIGABYTE = 10**9


def free_bytes(path: Path) -> int:
    """Bytes an ordinary user may still write where `path` is, or will be made."""
    room = os.statvfs(_existing(path))
    return room.f_bavail * room.f_frsize


def is_writable(path: Path) -> bool:
    """Whether this user may write where `path` is, or will be made."""
    return os.access(_existing(path), os.W_OK)


def require_writable(path: Path, what: str) -> None:
    """Raise RunDirectoryUnusable unless this user may write where `path` is, or will be made; `what` it is in words."""
    if not is_writable(path):
        code = errno.EROFS if os.statvfs(_existing(path)).f_flag & os.ST_RDONLY else errno.EACCES
        raise unwritable(OSError(code, os.strerror(code)), path, what)


def same_disk(one: Path, other: Path) -> bool:
    """Whether two paths, which need not be there yet, share the room that is free."""
    return _existing(one).stat().st_dev == _existing(other).stat().st_dev


def require_free(
    path: Path,
    *,
    needed_bytes: int,
    reserve_bytes: int = 0,
    what: str = "the run directory",
    next_step: str = "free some space, put the runs elsewhere (CRL_RUNS), or lower runtime.keep_checkpoints",
) -> None:
    """Raise NotEnoughDisk unless `needed_bytes` fit at `path` and `reserve_bytes` stay free beside them.

    RunDirectoryUnusable where nothing may be written at all; `what` it is in words.
    """
    require_writable(path, what)
    free = free_bytes(path)
    if free >= needed_bytes + reserve_bytes:
        return
    raise NotEnoughDisk(
        f"{free / GIGABYTE:.2f} GB are free; the run is estimated to write {needed_bytes / GIGABYTE:.2f} GB",
        expected=f"{(needed_bytes + reserve_bytes) / GIGABYTE:.2f} GB, with {reserve_bytes / GIGABYTE:.2f} GB to spare",
        where=str(path),
        next_step=next_step,
    )


def _existing(path: Path) -> Path:
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return place
