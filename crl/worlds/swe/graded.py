"""The tree that is graded: as the actor left it, with everything that grades as the row has it.

Taken from base commit and `test_patch`, whatever the actor did to them: the files that `test_patch` touches or a test's
name begins with, the folder of tests they are in, and in every folder what steers pytest or Python (`conftest.py`,
`pytest.ini`, `setup.cfg`, …); where the reference fix touches one of these, it is as that has it. Else, what the fix
touches in a folder of tests is the actor's. Compiled files are removed, and so are `.git` and metadata of packages that
are not of the base commit: plugins are found by it.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from crl.worlds.sandbox.workplace import remove, unlock
from crl.worlds.swe.patches import touched
from crl.worlds.swe.repository import copy
from crl.worlds.swe.rows import Row

_STEERING = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml",
    "sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link",
)  # fmt: skip
_REMOVED = ("__pycache__", "*.pyc", "*.pyo")
_METADATA = ("*.egg-info", "*.dist-info")
_TEST_FOLDERS = ("test", "tests", "testing")


def files_of(row: Row, tested: Path) -> list[str]:
    """The files that hold a row's tests: those that names begin with, and the Python files of `test_patch` for names
    that begin with none. Only those that exist."""
    named = {name.split("::")[0].strip().removeprefix("./") for name in row.tests if "::" in name}
    if len(named) == 0 or any("::" not in name for name in row.tests):
        named |= {path for path in touched(row.test_patch) if path.endswith(".py")}
    dotted = {name.strip()[:-1].partition(" (")[2] for name in row.tests if name.strip().endswith(")") and " (" in name}
    if dotted:
        there = [path for path, name in _entries(tested) if name.endswith(".py")]
        named |= {path for each in dotted for path in _modules_of(each, there)}
    return sorted(name for name in named if _inside(name) and (tested / name).is_file())


def _modules_of(dotted: str, paths: list[str]) -> list[str]:
    """The files that `module.Class` may be in: those whose path has most of the name."""
    found: dict[str, int] = {}
    for path in paths:
        parts = path.removesuffix(".py").split("/")
        shared = [len(parts) - at for at in range(len(parts)) if f"{dotted}.".startswith(".".join(parts[at:]) + ".")]
        if shared:
            found[path] = max(shared)
    return [path for path, most in found.items() if most == max(found.values())]


def steering_fix(row: Row) -> list[str]:
    """Files of the reference fix that steer pytest or Python."""
    return [path for path in sorted(touched(row.patch) - touched(row.test_patch)) if _inside(path) and _steers(path)]


def make_graded(row: Row, left: Path, tested: Path, fixed: Path, target: Path) -> None:
    """Write the tree that is graded.

    Args:
        left: the tree as the actor left it; nothing of the actor's runs any more.
        tested: base commit with `test_patch`.
        fixed: base commit with the reference fix; looked at for `steering_fix` alone.
        target: an empty folder.

    Raises OSError where something that steers pytest cannot be removed.
    """
    copy(left, target, some=True)  # the actor may have made files that cannot be read
    unlock(target)  # in a folder that may not be written to, nothing could be removed or restored
    remove(target / ".git")
    _clean(target, tested)
    for path in _steering(tested):
        _restore(path, tested, target)
    for path in steering_fix(row):
        _restore(path, fixed, target)
    kept = touched(row.patch) - touched(row.test_patch)
    grading = {path for path in touched(row.test_patch) if _inside(path)} | set(files_of(row, tested))
    for folder in sorted({folder for path in grading if (folder := _folder_of_tests(path)) is not None}):
        _restore_folder(folder, tested, target, kept)
    for path in sorted(grading):
        _restore(path, tested, target)


def _inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def _folder_of_tests(path: str) -> str | None:
    """The outermost folder of tests that a file is in."""
    parts = PurePosixPath(path).parts[:-1]
    for count, part in enumerate(parts, start=1):
        if part in _TEST_FOLDERS:
            return "/".join(parts[:count])
    return None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _entries(tree: Path) -> Iterator[tuple[str, str]]:
    """Every file, link and folder of a tree as (path, name); what is removed meanwhile is not entered."""
    for folder, folders, files in os.walk(tree, topdown=True, onerror=lambda error: None):
        below = os.path.relpath(folder, tree)
        for name in sorted([*folders, *files]):
            yield (name if below == "." else f"{below}/{name}"), name
        folders[:] = [name for name in folders if os.path.lexists(Path(folder, name))]


def _clean(target: Path, tested: Path) -> None:
    """Remove what steers pytest or Python and is not of the base commit, and everything compiled."""
    for path, name in _entries(target):
        foreign = _matches(name, (*_STEERING, *_METADATA)) and not os.path.lexists(tested / path)
        if foreign or _matches(name, _REMOVED):
            remove(target / path)
            if os.path.lexists(target / path):
                raise OSError(f"{target / path} cannot be removed from the tree that is graded; look at its modes")


def _steering(tested: Path) -> list[str]:
    """Files of base commit and `test_patch` that steer pytest or Python, metadata of packages included."""
    return [path for path, _ in _entries(tested) if not (tested / path).is_dir() and _steers(path)]


def _steers(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return _matches(parts[-1], _STEERING) or any(_matches(part, _METADATA) for part in parts)


def _restore_folder(folder: str, tested: Path, target: Path, kept: frozenset[str]) -> None:
    """A folder as base commit and `test_patch` have it, but for files that the reference fix touches."""
    if not (tested / folder).is_dir():
        return
    _real_folders(target, PurePosixPath(folder))
    for path, _ in list(_entries(target / folder)):
        full = f"{folder}/{path}"
        is_folder = (target / full).is_dir() and not (target / full).is_symlink()
        if full not in kept and not (is_folder and any(each.startswith(f"{full}/") for each in kept)):
            remove(target / full)
    for path, _ in _entries(tested / folder):
        full = f"{folder}/{path}"
        if full not in kept and not ((tested / full).is_dir() and not (tested / full).is_symlink()):
            _restore(full, tested, target)


def _restore(path: str, tested: Path, target: Path) -> None:
    """One file as base commit and `test_patch` have it; removed where they have none."""
    _real_folders(target, PurePosixPath(path).parent)
    if os.path.lexists(target / path):
        remove(target / path)
    if os.path.lexists(tested / path):
        shutil.copy2(tested / path, target / path, follow_symlinks=False)


def _real_folders(target: Path, folder: PurePosixPath) -> None:
    """Make a folder and those it is in; whatever else is in their place (a link, a file) is removed."""
    at = target
    for part in folder.parts:
        at /= part
        if at.is_symlink() or (os.path.lexists(at) and not at.is_dir()):
            remove(at)
        if not os.path.lexists(at):
            at.mkdir()
        at.chmod(0o755)
