"""The small libraries of `data/swe/libraries`: correct code, tests that are visible, and hidden tests.

A library's folder has its package, `README.md`, `tests/` (visible), `hidden_tests/` (what a task's `test_patch` adds to
`tests/`) and `library.yaml`: its split, and other names for what it defines (data/swe/mutations).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import yaml

from crl.errors import BadInput
from crl.paths import shipped

Split = Literal["train", "evaluation"]
Files = MappingProxyType[str, str]
"""Texts by path inside of a repository."""

DATA = shipped() / "data" / "swe"
_SETTINGS = """[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""


@dataclass(frozen=True)
class Library:
    """`files`: the repository with correct code and visible tests. `hidden_tests`: the files that `test_patch` adds."""

    name: str
    split: Split
    files: Files = field(repr=False)
    hidden_tests: Files = field(repr=False)

    @property
    def sources(self) -> list[str]:
        """Paths of the package's modules that define something."""
        modules = [path for path in self.files if path.endswith(".py") and not path.startswith("tests/")]
        return [path for path in modules if not path.endswith("/__init__.py")]

    @cached_property
    def tests(self) -> tuple[str, ...]:
        """All tests, visible and hidden ones, in pytest's order and by its names."""
        texts = {path: text for path, text in {**self.files, **self.hidden_tests}.items() if path.startswith("tests/")}
        return tuple(
            f"{path}::{node.name}"
            for path in sorted(texts)
            for node in ast.parse(texts[path]).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        )


@cache
def libraries() -> MappingProxyType[str, Library]:
    """All libraries by name, in alphabetical order. Raises BadInput where the files are not there."""
    folder = DATA / "libraries"
    found = {path.parent.name: _read(path.parent) for path in sorted(folder.glob("*/library.yaml"))}
    if not found:
        raise BadInput(
            "the bug-fix tasks that ship are not there",
            expected=f"libraries in {folder}",
            where="data/swe",
            next_step="install the project again: they come with it",
        )
    return MappingProxyType(found)


def _read(folder: Path) -> Library:
    about = yaml.safe_load((folder / "library.yaml").read_text(encoding="utf-8"))
    paths = [
        folder / "README.md",
        *sorted((folder / folder.name).glob("*.py")),
        *sorted((folder / "tests").glob("*.py")),
    ]
    files = {"pyproject.toml": _SETTINGS}
    files |= {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    hidden_tests = {
        f"tests/{path.name}": path.read_text(encoding="utf-8") for path in sorted(folder.glob("hidden_tests/*.py"))
    }
    return Library(
        name=folder.name,
        split=about["split"],
        files=MappingProxyType(files),
        hidden_tests=MappingProxyType(hidden_tests),
    )
