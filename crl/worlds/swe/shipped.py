"""The bug-fix tasks that ship: rows in SWE-Bench's format, and the repository of each.

A task is one YAML file in `data/swe/tasks`: a library, the places where its code is broken, and what a user of it
reports. A task's base commit is its library with the broken code; `patch` puts the correct code back, `test_patch`
adds the tests that judge. Rows and commits are made from these files alone and are equal on every machine.

A row has more than SWE-Bench's columns: `library`, `split`, `level` and `kind`. No library is in both splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from crl.errors import BadInput
from crl.worlds.swe.diffs import diff
from crl.worlds.swe.gitobjects import commit_of, write_repository
from crl.worlds.swe.library import DATA, SPLITS, Library, Split, libraries
from crl.worlds.swe.rows import Row, row_of

Level = Literal["easy", "medium", "hard"]
Kind = Literal["boundary", "state", "parsing", "concurrency", "performance", "misuse", "logic"]
LEVELS: tuple[Level, ...] = ("easy", "medium", "hard")
KINDS: tuple[Kind, ...] = ("boundary", "state", "parsing", "concurrency", "performance", "misuse", "logic")
OWNER = "shipped"
"""Owner in the name of a task's repository: `shipped/recency`."""


@dataclass(frozen=True)
class Task:
    """A library with a bug.

    `broken` has the text of each file that differs from the library's. `fail_to_pass` and `visible_failures` name
    tests as pytest does (`tests/test_behavior.py::test_gaps`): those of `test_patch` that fail because of the bug, and
    those in the tree that do. Neither kind is in `pass_to_pass`.
    """

    instance_id: str
    library: Library = field(repr=False)
    level: Level
    kind: Kind
    statement: str = field(repr=False)
    broken: Mapping[str, str] = field(repr=False)
    fail_to_pass: tuple[str, ...] = field(repr=False)
    visible_failures: tuple[str, ...] = field(default=(), repr=False)

    @property
    def split(self) -> Split:
        return self.library.split

    @property
    def files(self) -> dict[str, str]:
        """The repository that the task begins with."""
        return {**self.library.files, **self.broken}

    @property
    def pass_to_pass(self) -> tuple[str, ...]:
        failing = {*self.fail_to_pass, *self.visible_failures}
        return tuple(name for name in self.library.tests if name not in failing)

    def row(self) -> Row:
        files = self.files
        record = {
            "instance_id": self.instance_id,
            "repo": f"{OWNER}/{self.library.name}",
            "base_commit": commit_of(files),
            "problem_statement": self.statement,
            "patch": diff(files, self.library.files),
            "test_patch": diff({}, self.library.judging),
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
            "library": self.library.name,
            "split": self.split,
            "level": self.level,
            "kind": self.kind,
        }
        return row_of(record, self.instance_id)


@cache
def shipped_tasks() -> MappingProxyType[str, Task]:
    """All tasks written by hand, by instance_id in alphabetical order."""
    found = [_read(path) for path in sorted((DATA / "tasks").glob("*/*.yaml"))]
    return MappingProxyType({task.instance_id: task for task in sorted(found, key=lambda task: task.instance_id)})


def tasks(split: Split | None = None, level: Level | None = None, kind: Kind | None = None) -> list[Task]:
    """The tasks of a split, a level and a kind of bug, or of all. Raises BadInput for a name that is none."""
    for asked, known in ((split, SPLITS), (level, LEVELS), (kind, KINDS)):
        if asked is not None and asked not in known:
            raise BadInput(
                f"{asked!r} selects none of the bug-fix tasks that ship",
                expected=" | ".join(known),
                where="crl.worlds.swe.shipped",
                next_step="use one of these names",
            )
    return [
        task
        for task in shipped_tasks().values()
        if split in (None, task.split) and level in (None, task.level) and kind in (None, task.kind)
    ]


def shipped_rows(split: Split | None = None, level: Level | None = None, kind: Kind | None = None) -> list[Row]:
    """The rows of `tasks`."""
    return [task.row() for task in tasks(split, level, kind)]


def materialize(task: Task, folder: Path) -> Path:
    """The bare repository of one task in a folder: `<instance_id>.git`, written unless it is there already.

    It has one commit without parents, the row's `base_commit`, and nothing else: no history that holds the fix.
    """
    place = folder / f"{task.instance_id}.git"
    write_repository({task.instance_id: task.files}, place)
    return place


def materialize_all(tasks: Iterable[Task], folder: Path) -> list[Path]:
    """The bare repositories of many tasks, as their rows name them: `<library>.git`, with a commit per task.

    Each commit is on a branch of the task's name. Others of the commits hold the correct code: a task is played in a
    tree of its own commit, as it is with SWE-Bench's own repositories.
    """
    by_library: dict[str, dict[str, Mapping[str, str]]] = {}
    for task in tasks:
        by_library.setdefault(task.library.name, {})[task.instance_id] = task.files
    for name, trees in by_library.items():
        write_repository(trees, folder / f"{name}.git")
    return [folder / f"{name}.git" for name in by_library]


def broken_files(library: Library, edits: list[Mapping[str, Any]], where: str) -> dict[str, str]:
    """Texts of the files in which each `correct` of an edit, which is there once, is replaced by its `broken`."""
    found: dict[str, str] = {}
    for edit in edits:
        text = found.get(edit["file"], library.files.get(edit["file"], ""))
        if text.count(edit["correct"]) != 1:
            raise BadInput(
                f"the correct code of a task is there {text.count(edit['correct'])} times in {edit['file']}",
                expected="a piece of the library's code that is there once",
                where=where,
                next_step="adapt the task to its library",
            )
        found[edit["file"]] = text.replace(edit["correct"], edit["broken"])
    return found


def _read(path: Path) -> Task:
    about = yaml.safe_load(path.read_text(encoding="utf-8"))
    library = libraries()[path.parent.name]
    judging = next(iter(library.judging))
    return Task(
        instance_id=f"{library.name}-{path.stem}",
        library=library,
        level=about["level"],
        kind=about["kind"],
        statement=about["problem_statement"],
        broken=MappingProxyType(broken_files(library, about["bug"], str(path))),
        fail_to_pass=tuple(f"{judging}::{name}" for name in about["fail_to_pass"]),
    )
