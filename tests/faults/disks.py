"""A file system of a few megabytes, for tests of a disk that fills up. Mounting one needs Linux and root."""

from __future__ import annotations

import contextlib
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
