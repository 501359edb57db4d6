"""How large and how deep a file may be that somebody else may have written, and the readers that hold to it.

A file of a run or of a model's folder may be cut short, or made to harm: nested without end, larger than the memory, a
pipe or a device in the place of a file. :func:`read_limited` and :func:`parse_json` raise OSError and ValueError then,
as for any other file that cannot be read, so whoever reads says which file it was and what to do. Commands that a user
types show what is deeper or larger by its name, and go on.

This file imports nothing of the project.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

MEGABYTE = 10**6
RECORD_FILE_BYTES = 256 * MEGABYTE
"""Of a manifest, a seal, a lease, a decision: of one with 10,000 files 2 MB are used."""
LOG_BYTES = 4_000 * MEGABYTE
"""Of a file of JSON lines, such as the journal: 100,000 rounds of twenty stages."""
TABLE_BYTES = 64_000 * MEGABYTE
"""Of a table whose size no manifest says."""
LINE_BYTES = 64 * MEGABYTE
"""Of one line of such a file."""
MODEL_JSON_BYTES = 500 * MEGABYTE
"""Of config, tokenizer and index of a model: the largest tokenizers have 35 MB."""
WEIGHTS_HEADER_BYTES = 100 * MEGABYTE
"""Of the header of a file of weights, as the format says."""
MOST_EPISODES = 10**6
"""Held-out episodes of an exported agent."""
SKILL_BYTES = 10 * MEGABYTE
"""Of a SKILL.md: agents read it whole, so good ones have a few kilobytes."""
DEEPEST = 100
"""Levels of nesting of JSON."""
LARGEST_NUMBER = 2**53
"""Of a round, of an attempt: what a file says beyond it is nonsense."""


def read_limited(path: Path, limit: int = RECORD_FILE_BYTES) -> bytes:
    """The content of a plain file of at most `limit` bytes. Raises OSError: EFBIG, or EINVAL for what is no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would wait
    with os.fdopen(descriptor, "rb") as file:
        known = os.fstat(descriptor)
        if stat.S_ISDIR(known.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(known.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, and no file", str(path))
        if known.st_size > limit:
            raise OSError(errno.EFBIG, f"it has more than the {limit:,} bytes that such a file may have", str(path))
        return file.read(known.st_size)  # what is appended meanwhile is for the next reader


def parse_json(text: str | bytes, *, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text of at most :data:`DEEPEST` levels; `pairs` makes objects of members. Raises ValueError,
    also for what is nested deeper."""
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None
    few = text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    if few > DEEPEST and depth(value) > DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return value


def depth(value: Any) -> int:
    """Levels of lists and objects."""
    level, found = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        found += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return found


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number that can be that of a round or of an attempt."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_NUMBER
