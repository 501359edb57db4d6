"""Unified diffs: which files one touches, and applying it to a tree that nobody else has written to."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from crl.errors import BadInput

_HEADER = re.compile(r'^diff --git (?:"?a/(?P<old>[^"\n]*?)"?) (?:"?b/(?P<new>[^"\n]*?)"?)$', re.MULTILINE)
_SIDES = re.compile(r'^(?:---|\+\+\+) "?(?:a|b)/(?P<path>[^"\t\n]*)"?', re.MULTILINE)
_SECONDS = 120


def touched(diff: str) -> frozenset[str]:
    """Paths that a diff makes, changes, moves or removes: those of both sides."""
    paths = {found[side] for found in _HEADER.finditer(diff) for side in ("old", "new")}
    if not paths:
        paths = {found["path"] for found in _SIDES.finditer(diff)}
    return frozenset(path for path in paths if path)


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


def git_environment(tree: Path) -> dict[str, str]:
    """The environment of a `git` that takes nothing from the user's settings, and finds no repository above a tree."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
    }  # fmt: skip
