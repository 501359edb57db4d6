"""A stage's writer that leaves the record alone: for stages that run beside it (counting parts, further ranks, an
evaluation outside the run, making a lost stage again)."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from crl.records import Row, rows_of

R = TypeVar("R", bound=Row)


class MemoryWriter:
    """Keeps in memory what a stage writes (protocol `crl.rounds.context.Writer`).

    `directory` is where files of the stage's own go; asking for it without one raises `refused`.
    """

    def __init__(self, directory: Path | None = None, *, refused: Exception | None = None) -> None:
        self._directory = directory
        self._refused = refused or AssertionError("this stage may write no files of its own")
        self.tables: dict[type[Row], list[pa.Table]] = {}
        """By row type, in the order written: several parts may write to one writer."""
        self.shared: dict[str, bytes] = {}
        """By run-relative path."""

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise self._refused
        return self._directory

    def write(self, row_type: type[Row], table: pa.Table) -> None:
        self.tables.setdefault(row_type, []).append(table)

    def rows(self, row_type: type[R]) -> list[R]:
        """The rows of one type that were written."""
        return [row for table in self.tables.get(row_type, []) for row in rows_of(row_type, table)]

    def share(self, relative: str, content: bytes) -> None:
        self.shared[relative] = content
