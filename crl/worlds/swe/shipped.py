"""The bug-fix tasks that ship, as rows in SWE-Bench's format.

A task is one YAML file in `data/swe/tasks`: a library, the places where its code is broken, and what a user of it
reports. A task's base commit is its library with the broken code; `patch` puts the correct code back, `test_patch`
adds the hidden tests. Rows are made from these files alone and are equal on every machine.

A row has more than SWE-Bench's columns: `library`, `split`, `level` and `kind`. No library is in both splits.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from crl.errors import BadInput
from crl.worlds.swe.library import DATA, Library, Split, libraries
from crl.worlds.swe.rows import Row, row_of

Level = Literal["easy", "medium", "hard"]
Kind = Literal["boundary", "state", "parsing", "concurrency", "performance", "misuse", "logic"]
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
        """Its row. As `base_commit` it names the branch that the task's repository has for it."""
        files = self.files
        record = {
            "instance_id": self.instance_id,
            "repo": f"{OWNER}/{self.library.name}",
            "base_commit": self.instance_id,
            "problem_statement": self.statement,
            "patch": diff(files, self.library.files),
            "test_patch": diff({}, self.library.hidden_tests),
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


def tasks(split: Split, level: Level | None = None) -> list[Task]:
    """The tasks of a split, of one level or of all."""
    return [task for task in shipped_tasks().values() if task.split == split and level in (None, task.level)]


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What changes, file by file in order of their paths, as `git apply` reads it. Each text ends with a line end."""
    parts = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        head = f"diff --git a/{path} b/{path}\n"
        if old is None:
            head += "new file mode 100644\n"
        if new is None:
            head += "deleted file mode 100644\n"
        lines = difflib.unified_diff(
            (old or "").splitlines(keepends=True),
            (new or "").splitlines(keepends=True),
            "/dev/null" if old is None else f"a/{path}",
            "/dev/null" if new is None else f"b/{path}",
        )
        parts.append(head + "".join(lines))
    return "".join(parts)


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
    hidden = next(iter(library.hidden_tests))
    return Task(
        instance_id=f"{library.name}-{path.stem}",
        library=library,
        level=about["level"],
        kind=about["kind"],
        statement=about["problem_statement"],
        broken=MappingProxyType(broken_files(library, about["bug"], str(path))),
        fail_to_pass=tuple(f"{hidden}::{name}" for name in about["fail_to_pass"]),
    )
