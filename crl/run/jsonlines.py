"""Append-only files of JSON lines, one object per line, synced with every append.

A process that dies in the middle of an append leaves a torn last line: readers skip it, the next append starts a new
line after it. The files are beside the record (journal, list of pruned checkpoints) and are in no digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crl.run.files import disk_errors, fsync
from crl.text.unicode import valid_text


class JsonLines:
    """One such file. Appending is safe from several processes; reading needs no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, payload: Mapping[str, Any]) -> None:
        """Append one line and sync it; what JSON does not know is written as text. Raises DiskFull."""
        line = valid_text(json.dumps(dict(payload), default=str, ensure_ascii=False)).encode() + b"\n"
        with disk_errors(self.path):
            created = not self.path.exists()
            with self.path.open("ab+", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = file.seek(0, os.SEEK_END)
                torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
                rest = b"\n" + line if torn else line
                try:
                    while rest:
                        rest = rest[file.write(rest) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)
                    raise
            if created:
                fsync(self.path.parent)

    def read(self) -> list[dict[str, Any]]:
        """The objects of all readable lines, in order; empty where there is no file."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for line in content.split(b"\n"):
            with contextlib.suppress(ValueError):
                payload = json.loads(line)
                if isinstance(payload, dict):
                    found.append(payload)
        return found
