"""What a command uses while it runs: memory of all its processes, and the size of its work tree."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crl.worlds.sandbox.limits import MEGABYTE, Ended, Limits

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SLOWEST = 10
"""Times its limit that a command may take on a busy machine."""
_DEEPEST = 100
"""Folders in folders; a deeper tree counts as one that is too large."""
_BYTES_MOVED, _FILES_MOVED = 8 * MEGABYTE, 5000
"""What has to be taken or freed on the disk, by whomever, before a work tree is measured again: walking it is slow."""


def memory_of(pids: Sequence[int]) -> int:
    """Bytes in memory that are a process's own, of all given; one that is gone has none."""
    total = 0
    for pid in pids:
        try:
            pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            continue
        total += (int(pages[1]) - int(pages[2])) * _PAGE
    return total


class Clock:
    """Wall-clock time of a command, without what its processes waited for a processor: on a busy machine a command has
    as long as on an idle one, at most ten times its limit."""

    def __init__(self, seconds: float) -> None:
        self._end, self._most = time.monotonic() + seconds, (_SLOWEST - 1) * seconds
        self._looked, self._waited = time.monotonic(), dict[int, float]()

    def left(self) -> float:
        """Seconds until the limit."""
        return self._end - time.monotonic()

    def wait_of(self, pids: Sequence[int]) -> bool:
        """Look at how long processes waited since the last look. Whether time is left."""
        now, before = time.monotonic(), self._waited
        self._waited = {pid: waited for pid in pids if (waited := _waited(pid)) is not None}
        if self._waited:
            delay = sum(waited - before.get(pid, 0.0) for pid, waited in self._waited.items())
        else:  # of a container, whose processes are not ours to see
            delay = (now - self._looked) * (1 - 1 / max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        delay = max(0.0, min(delay, now - self._looked, self._most))
        self._looked = now
        self._end, self._most = self._end + delay, self._most - delay
        return self.left() > 0


def _waited(pid: int) -> float | None:
    """Seconds that a process was ready to run and did not."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Size:
    """What a work tree holds."""

    bytes: int
    files: int

    def over(self, limits: Limits) -> bool:
        """Whether that is more than it may."""
        return self.bytes > limits.tree_mb * MEGABYTE or self.files > limits.tree_files


_TOO_LARGE = Size(1 << 62, 1 << 62)


def size_of(tree: Path, limits: Limits) -> Size:
    """Bytes on disk, files and folders of a tree. Stops where it is over its limits; follows no link.

    A tree that is too deep, or has a folder that cannot be read, counts as too large: nobody could say what it holds.
    """
    size, folders = Size(0, 0), [(str(tree), 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        blocks = entry.stat(follow_symlinks=False).st_blocks
                    except FileNotFoundError:
                        continue
                    size = Size(size.bytes + blocks * 512, size.files + 1)
                    if size.over(limits):
                        return size
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, depth + 1))
        except FileNotFoundError:  # a command that still runs removed it
            continue
        except OSError:
            return _TOO_LARGE
        if depth > _DEEPEST:
            return _TOO_LARGE
    return size


def too_deep(tree: Path) -> bool:
    """Whether folders are in folders more often than `size_of` follows them. What cannot be read has no depth."""
    folders = [(str(tree), 0)]
    while folders:
        folder, depth = folders.pop()
        if depth > _DEEPEST:
            return True
        with suppress(OSError), os.scandir(folder) as entries:
            folders += [(each.path, depth + 1) for each in entries if each.is_dir(follow_symlinks=False)]
    return False


class Watched:
    """Looks whether the commands in a work tree are over their limits, as often as it is asked. One per tree."""

    def __init__(self, tree: Path, limits: Limits) -> None:
        self._tree, self._limits = tree, limits
        self._free = self._left()

    def _left(self) -> tuple[int, int]:
        found = os.statvfs(self._tree)
        return found.f_bavail * found.f_frsize, found.f_ffree

    def look(self, pids: Sequence[int]) -> Ended:
        """The limit that is broken, if any."""
        if memory_of(pids) > self._limits.memory_mb * MEGABYTE:
            return "memory"
        left = self._left()
        moved = abs(self._free[0] - left[0]), abs(self._free[1] - left[1])
        if moved[0] < _BYTES_MOVED and moved[1] < _FILES_MOVED:
            return ""
        self._free = left
        return "disk" if size_of(self._tree, self._limits).over(self._limits) else ""
