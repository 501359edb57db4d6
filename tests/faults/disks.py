"""A file system of a few megabytes, for tests of a disk that fills up or turns read-only. It needs Linux and root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 24 * 2**20


@contextlib.contextmanager
def small_disk(place: Path, size: int = SIZE) -> Iterator[Path]:
    """Mounted at `place` inside the context; the test is skipped where that is not possible."""
    place.mkdir(parents=True)
    if not sys.platform.startswith("linux"):
        pytest.skip("mounting a small file system works on Linux only")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """A file that leaves so many bytes free."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    room = os.statvfs(disk)
    with ballast.open("wb") as file:
        file.write(b"\0" * (room.f_bavail * room.f_frsize - leave))
    return ballast


def turn_read_only(disk: Path) -> None:
    """As a kernel does that found an error on it."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
