"""Room on the disk: refused before work starts rather than found out in the middle of it."""

from __future__ import annotations

import os
from pathlib import Path

from crl.errors import NotEnoughDisk

GIGABYTE = 10**9


def free_bytes(path: Path) -> int:
    """Bytes an ordinary user may still write where `path` is, or will be made."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize


def require_free(path: Path, *, needed_bytes: int, reserve_bytes: int = 0) -> None:
    """Raise NotEnoughDisk unless `needed_bytes` fit at `path` and `reserve_bytes` stay free beside them."""
    free = free_bytes(path)
    if free >= needed_bytes + reserve_bytes:
        return
    raise NotEnoughDisk(
        f"{free / GIGABYTE:.2f} GB are free; the run is estimated to write {needed_bytes / GIGABYTE:.2f} GB",
        expected=f"{(needed_bytes + reserve_bytes) / GIGABYTE:.2f} GB, with {reserve_bytes / GIGABYTE:.2f} GB to spare",
        where=str(path),
        next_step="free some space, put the runs elsewhere (CRL_RUNS), or lower runtime.keep_checkpoints",
    )
