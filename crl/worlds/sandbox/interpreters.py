"""The Python that the tree of a task is run and graded with: where it is, and whether it has pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crl.errors import BadInput
from crl.paths import quoted, short

WHERE = "method.families[].environment.interpreter"
_ASK = (
    "import importlib.util, json, os, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, "
    "sys.base_exec_prefix, *(each for each in sys.path if each.endswith(('site-packages', 'dist-packages'))), "
    "[*sys.path, *(os.path.dirname(each) for name, found in list(sys.modules.items()) "
    "if name.startswith('__editable__') for each in getattr(found, 'MAPPING', {}).values())], "
    "list(sys.version_info[:2]), importlib.util.find_spec(sys.argv[1]) is not None]))"
)
"""Packages elsewhere than in the prefix are needed too. Other folders of its path are not: an editable installation
could be of the repository itself, with the fix."""
_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")
_SECONDS = 120
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One Python."""

    path: str
    """Its executable, absolute; of a virtual environment the link in it."""
    roots: tuple[str, ...]
    """Folders that it needs, no one in another."""
    version: tuple[int, int]
    sources: tuple[str, ...] = ()
    """Folders of projects, such as `lib`, that packages are installed from as they are: those of a tree come first."""

    @property
    def state(self) -> str:
        """Changes when packages are installed or removed."""
        sites = (site for root in self.roots for site in Path(root).glob("lib/python3*/*-packages"))
        return " ".join(f"{site}:{site.stat().st_mtime_ns}" for site in sorted(sites))


@lru_cache(maxsize=64)
def interpreter_of(name: str | None, needs: str = "pytest") -> Interpreter:
    """An interpreter by the path of its executable; None: the one that runs this.

    Raises BadInput where it cannot be run or has not the module that it `needs`.
    """
    path = str(Path(name).expanduser().absolute()) if name else sys.executable
    try:
        asked = subprocess.run([path, "-I", "-c", _ASK, needs], capture_output=True, timeout=_SECONDS, check=True)
        *prefixes, searched, version, tested = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        raise BadInput(
            f"the interpreter {short(path)} cannot be run: {said.decode(errors='replace').strip()[-300:]}",
            expected="the executable of a Python of 3.8 or later",
            where=WHERE,
            next_step="correct the path; null takes the interpreter that runs this",
        ) from None
    if not tested:
        raise BadInput(
            f"the interpreter {short(path)} has no {needs}, which grades the tasks",
            expected=f"a Python with {needs} and what the repositories need",
            where=WHERE,
            next_step=f"{quoted(path)} -m pip install {quoted(needs)}",
        )
    folders = [*(Path(prefix) for prefix in prefixes), *(each.parent for each in _links(Path(path)))]
    both = {str(folder) for each in folders for folder in (each, each.resolve())}
    roots = _outermost(both)
    return Interpreter(path, roots, (version[0], version[1]), _sources(searched, roots))


def _sources(searched: list[str], roots: tuple[str, ...]) -> tuple[str, ...]:
    """Where in their projects the folders are that Python looks in beside its own and the usual."""
    found: dict[str, None] = {}
    for folder in map(Path, searched):
        projects = (each for each in (folder, *folder.parents) if any((each / name).exists() for name in _PROJECT))
        own = not folder.is_dir() or any(folder.is_relative_to(root) for root in roots)
        if not own and (project := next(projects, None)) is not None:
            found[folder.relative_to(project).as_posix()] = None
    return tuple(each for each in found if each not in (".", "src"))


def _links(path: Path) -> list[Path]:
    """A path, and every one that it leads to by links of its last name."""
    found = [path]
    while found[-1].is_symlink() and len(found) < _MOST_LINKS:
        found.append(found[-1].parent / found[-1].readlink())
    return found


def _outermost(folders: set[str]) -> tuple[str, ...]:
    found: list[str] = []
    for folder in sorted(folders, key=lambda each: (len(Path(each).parts), each)):
        if not any(Path(folder).is_relative_to(outer) for outer in found):
            found.append(folder)
    return tuple(found)
