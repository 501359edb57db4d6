"""Unified diffs: which files one touches, and applying it to a tree that nobody else has written to."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from crl.errors import BadInput

_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_HEADER = re.compile(r"^diff --git (.+)$", re.MULTILINE)
_NAMES = re.compile(rf"({_QUOTED}|a/.*?) ({_QUOTED}|b/.*)")
_SIDES = re.compile(rf"^(?:---|\+\+\+) ({_QUOTED}|[^\t\n]*)", re.MULTILINE)
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPES = dict(zip(b"abtnvfr", b"\a\b\t\n\v\f\r", strict=True))
_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_SECONDS = 120


def touched(diff: str) -> frozenset[str]:
    """Paths that a diff makes, changes, moves or removes: those of both sides."""
    names = [name for found in _HEADER.finditer(diff) for name in _both(found[1])]
    if not names:
        names = [found[1] for found in _SIDES.finditer(diff)]
    paths = [_unquoted(name) for name in names]
    return frozenset(path[2:] for path in paths if path.startswith(("a/", "b/")) and len(path) > 2)


def _both(header: str) -> tuple[str, ...]:
    """The names of both sides. Blanks in names that are not quoted make it unclear where the first one ends: where both
    are equal, there; else at the first ` b/`."""
    half = len(header) // 2
    if header.startswith("a/") and header[half:] == f" b/{header[2:half]}":
        return header[:half], header[half + 1 :]
    found = _NAMES.fullmatch(header)
    return () if found is None else (found[1], found[2])


def _unquoted(name: str) -> str:
    """A name as git quotes it: with C's escapes, and bytes of other letters in octal."""
    if not name.startswith('"'):
        return name

    def byte(found: re.Match[bytes]) -> bytes:
        said = found[1]
        return bytes([int(said, 8) if len(said) == 3 else _ESCAPES.get(said[0], said[0])])

    return _ESCAPED.sub(byte, name[1:-1].encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def apply(diff: str, tree: Path, *, column: str, instance: str) -> None:
    """Apply a diff to a tree. Raises BadInput that names the row and the column where it does not fit."""
    if not diff.strip():
        return
    text = diff if diff.endswith("\n") else diff + "\n"
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "apply", "--whitespace=nowarn", "-p1", "-"], cwd=tree, capture_output=True,
        input=text.encode("utf-8", "surrogateescape"), timeout=_SECONDS, check=False, env=git_environment(tree),
    )  # fmt: skip
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise BadInput(
            f"the column {column} of {instance} cannot be applied: {said}",
            expected="a unified diff over base_commit",
            where=f"row {instance}, column {column}",
            next_step="correct the row, or the repository that it is about",
        )


def hunks(before: str, after: str) -> list[tuple[int, int, int, int]]:
    """What differs between two texts: the lines from `first` to `last` of one, and from `begin` to `end` of the other.

    By git: Python's difflib takes the square of the number of lines that are alike.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("a", before), ("b", after)):
            Path(folder, name).write_bytes(text.encode("utf-8", "surrogateescape"))
        done = subprocess.run(
            ["git", "diff", "--no-index", "--text", "--no-color", "--no-ext-diff", "--unified=0", "a", "b"],
            cwd=folder, capture_output=True, timeout=_SECONDS, check=False, env=git_environment(Path(folder)),
        )  # fmt: skip
    found = []
    for hunk in _HUNK.finditer(done.stdout):
        first, removed, begin, added = (1 if each is None else int(each) for each in hunk.groups())
        # Where nothing is removed or added, git names the line before it.
        first, begin = first - (removed > 0), begin - (added > 0)
        found.append((first, first + removed, begin, begin + added))
    return found


def git_environment(tree: Path) -> dict[str, str]:
    """The environment of a `git` that takes nothing from the user's settings, and finds no repository above a tree."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
    }  # fmt: skip
