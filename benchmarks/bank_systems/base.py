"""What every system is asked to do. Vectors are given: nothing is embedded while the clock runs.

A snapshot is a state of the store that can be opened later although the store went on: what a round leaves behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """Entries as columns: id, family, text, unit vector."""

    ids: list[str]
    families: list[str]
    texts: list[str]
    vectors_ND: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Changes:
    """What one round does: entries that get a new text and vector, new ones, and those that go."""

    updated: Rows
    added: Rows
    removed: list[tuple[str, str]]
    """(id, family)"""


class System(Protocol):
    """One store in a directory of its own."""

    name: str
    exact: bool
    """Whether it can search exhaustively."""
    approximate: bool
    """Whether it has an approximate index."""
    efforts: tuple[Any, ...]
    """Settings of the approximate search, from fast to thorough."""

    def add(self, rows: Rows) -> None:
        """Fill the empty store; on return the entries are in its files and are snapshot 0."""

    def build(self) -> None:
        """Make the approximate index of snapshot 0, where `add` has not made it."""

    def open(self, round_number: int) -> None:
        """Open a snapshot so that it can be searched, from files alone."""

    def search(self, queries_BD: NDArray[np.float32], count: int, effort: Any | None) -> list[list[str]]:
        """Ids of the nearest entries of each query; exhaustively where `effort` is None."""

    def prepare(self, round_number: int, changes: Changes) -> None:
        """What stands on disk before a round publishes; not timed."""

    def snapshot(self, round_number: int, changes: Changes) -> None:
        """Apply a round's changes and keep the result under its number."""

    def bytes(self) -> int:
        """Bytes on disk, every snapshot included, indexes that can be rebuilt excluded."""

    def close(self) -> None:
        """Free memory and files."""


def bytes_below(directory: Path) -> int:
    """Bytes of every file below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def nearest(
    ids: Sequence[str], vectors_ND: NDArray[np.float32], queries_BD: NDArray[np.float32], count: int
) -> list[list[str]]:
    """Exhaustive search with NumPy: the truth that recall is counted against."""
    scores_BN = queries_BD @ vectors_ND.T
    best_BK = np.argpartition(-scores_BN, count - 1, axis=1)[:, :count]
    ranks_BK = np.take_along_axis(scores_BN, best_BK, axis=1).argsort(axis=1)[:, ::-1]
    return [[ids[row] for row in rows] for rows in np.take_along_axis(best_BK, ranks_BK, axis=1).tolist()]
