"""Unified diffs between two trees of files, in the form that `git apply` reads."""

from __future__ import annotations

import difflib
from collections.abc import Mapping


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What changes, file by file in order of their paths; files may be new or gone. Each text ends with a line end."""
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
