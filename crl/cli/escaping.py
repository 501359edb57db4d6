"""What the command line prints is plain text: a control character is shown as its escape, never sent to the terminal.

Names, texts and observations may come from someone else's file. ESC [ 2 J in one of them would clear the screen.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from crl.text.unicode import UNSEEN, escaped


def say(text: str, *, stderr: bool = False) -> None:
    """Print text as it is, with nothing that a terminal would obey."""
    print(escaped(text), file=sys.stderr if stderr else sys.stdout, flush=True)


def say_json(value: Any, indent: int | None = None) -> None:
    """Print JSON. Nothing is lost: what JSON itself leaves bare is written as JSON's own escape. Only a number that it
    does not know (NaN, infinity) is null."""
    text = json.dumps(_known(value), ensure_ascii=False, indent=indent, default=str)
    # Newlines of the indentation are no control characters here; those within strings are escaped already.
    print(UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
