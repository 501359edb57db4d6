"""What of a run was found intact last: to open it, only what changed since is read again.

The cache entry `cache/intact/` holds size, times, inode and SHA-256 of every file that was read in full. A file whose
size, times or inode differ, or that changed in the seconds before it was read (a clock ticks in steps: a second change
may leave no trace then), is read. What no write caused, such as a disk that loses bits, only `crl verify` sees: it
reads every byte, as always. The entry is checksummed and disposable like all of the cache.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from crl.errors import CrlError
from crl.limits import parse_json
from crl.run.cache import Shelf, cached
from crl.run.files import canonical_json, sha256_file

NAME = "intact"
_FILE = "files.json"
_SETTLED = 2_000_000_000
"""Nanoseconds after which a changed file has another time stamp for sure."""


class LastIntact:
    """The SHA-256 of files of one run, each read unless it is as it was when it was read last."""

    def __init__(self, run_path: Path) -> None:
        self._run_path = run_path
        self._before: dict[str, list[int | str]] = {}
        self._now: dict[str, list[int | str]] = {}
        directory = Shelf(run_path).newest(NAME)
        if directory is not None:
            with contextlib.suppress(OSError, ValueError):
                self._before = parse_json((directory / _FILE).read_bytes())

    def sha256(self, path: Path) -> str:
        """SHA-256 of a file of the run."""
        name, marks = path.relative_to(self._run_path).as_posix(), _marks(path)
        known = self._before.get(name)
        if known is not None and known[:-1] == marks:
            self._now[name] = known
            return str(known[-1])
        started = time.time_ns()
        digest = sha256_file(path)
        if marks == _marks(path) and max(marks[1:3]) + _SETTLED < started:
            self._now[name] = [*marks, digest]
        return digest

    def keep(self) -> None:
        """Remember what was read or known this time. Where it cannot be written, the next time reads it all again."""
        if self._now == self._before:
            return

        def write(directory: Path) -> None:
            (directory / _FILE).write_bytes(canonical_json(self._now))

        with contextlib.suppress(OSError, CrlError):
            cached(self._run_path, NAME, write, again=True)


def _marks(path: Path) -> list[int]:
    """What every write to a file changes: its size, and when it and its inode were changed; and the inode itself."""
    known = path.stat()
    return [known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino]
