"""Words of the command lines that this project prints: each is there to be copied into a shell, whatever is in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def quoted(word: str | Path) -> str:
    """One word as a shell takes it, on one line. A path that begins with a dash is no option: it gets a `./`."""
    text = str(word)
    if isinstance(word, Path) and text.startswith("-"):
        text = f"./{text}"
    if _CONTROL.search(text) is None:
        return shlex.quote(text)
    escaped = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{escaped}'"
