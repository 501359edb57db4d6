"""The tasks of programs: rows of a file, and which of them are held out.

As for data sets, a digest of a task's text alone decides whether it is held out: equal tasks are on one side, and none
moves when another is added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.worlds.json_files import shown
from crl.worlds.records import KINDS, records

T = TypeVar("T")
WHERE = "method.families[].environment"
LONGEST = 100_000
"""Bytes of a task: it is handed over as an environment variable, which Linux bounds."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row."""

    text: str
    columns: Mapping[str, Any]
    """All others."""
    location: str

    @property
    def digest(self) -> bytes:
        """Of its text."""
        return hashlib.sha256(self.text.encode("utf-8", "backslashreplace")).digest()


@dataclass(frozen=True)
class Sides(Generic[T]):
    """Tasks of training and held-out ones."""

    training: Sequence[T]
    held_out: Sequence[T]

    def of(self, seed: int, first: int | None) -> T:
        """The task of a seed: seeds from `first` on mean held-out ones."""
        if first is None or seed < first:
            return self.training[seed % len(self.training)]
        return self.held_out[(seed - first) % len(self.held_out)]


def bad_row(found: str, expected: str, where: str) -> BadInput:
    """A file of tasks, or a row of it, that cannot be read."""
    return BadInput(
        f"the tasks cannot be read: {found}",
        expected=expected,
        where=where,
        next_step="correct or remove the row, or name another file as environment.tasks",
    )


def located(name: str) -> Path:
    """The file of tasks. Raises BadInput where there is none."""
    path = possible_path(name, "the file of tasks", where=f"{WHERE}.tasks", home=True)
    if not path.is_file():
        raise BadInput(
            f"there is no file {short(path)} in {Path.cwd()}",
            expected=f"a file of tasks ({', '.join(KINDS)}), a row per task",
            where=f"{WHERE}.tasks",
            next_step="correct the path: it begins in the folder that crl is started in",
        )
    return path


def sides_of(name: str, column: str, share: float, *, held_out: bool) -> Sides[Task]:
    """The tasks of a file, read once while it stays as it is. Raises BadInput."""
    path = located(name)
    state = path.stat()
    return _sides(path.absolute(), state.st_mtime_ns, state.st_size, column, share, held_out)


@lru_cache(maxsize=4)
def _sides(path: Path, modified: int, size: int, column: str, share: float, held_out: bool) -> Sides[Task]:
    rows = [_task(record, column, where) for where, record in _rows(path)]
    tasks = list({task.digest: task for task in rows}.values())
    return split(tasks, lambda task: task.digest, share, held_out=held_out)


def split(tasks: Sequence[T], digest: Callable[[T], bytes], share: float, *, held_out: bool) -> Sides[T]:
    """Which of some tasks are held out. Raises BadInput where a side is empty."""
    if not held_out:
        return Sides(tasks, tasks)
    sides: tuple[list[T], list[T]] = ([], [])
    for task in tasks:
        sides[int.from_bytes(digest(task)[:8]) / 2**64 < share].append(task)
    training, kept = sides
    if not training or not kept:
        raise BadInput(
            f"{len(tasks)} different tasks leave {len(training)} to train on and {len(kept)} to evaluate on",
            expected="tasks on both sides",
            where=f"{WHERE}.test_size",
            next_step=f"change test_size ({share:g}), bring more tasks, or set held_out_from: null",
        )
    return Sides(training, sorted(kept, key=digest))


def _rows(path: Path) -> list[tuple[str, Any]]:
    rows = list(records(path, bad_row))
    if not rows:
        raise bad_row("it holds no row", "a task per row", str(path))
    return rows


def _task(record: Any, column: str, where: str) -> Task:
    if isinstance(record, Mapping) and column not in record:
        found = f"there is no column {column!r}; its columns are {', '.join(map(str, record))}"
        raise bad_row(found, f"a column {column!r} with the task's text, or another name as environment.prompt", where)
    if not isinstance(record, Mapping) or not isinstance(record.get(column), str) or not record[column].strip():
        value = record.get(column) if isinstance(record, Mapping) else record
        raise bad_row(f"{column!r} is {shown(value)}", f"a column {column!r} with the task's text", where)
    text = record[column]
    if len(text.encode("utf-8", "replace")) > LONGEST or "\x00" in text:
        raise bad_row(f"the task has {len(text):,} characters", f"at most {LONGEST:,} bytes, and no zero byte", where)
    return Task(text, {name: value for name, value in record.items() if name != column}, where)
