"""What the command line prints is plain text: a control character is shown as its escape, never sent to the terminal.

Names, texts and observations may come from someone else's file. ESC [ 2 J in one of them would clear the screen.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""All control characters but tab and newline, what turns the direction of a text, and halves of surrogate pairs."""


def escaped(text: str) -> str:
    r"""The text with every character of :data:`UNSEEN` written out, such as `\x1b` for ESC."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def say(text: str, *, stderr: bool = False) -> None:
    """Print text as it is, with nothing that a terminal would obey."""
    print(escaped(text), file=sys.stderr if stderr else sys.stdout)


def say_json(value: Any, indent: int | None = None) -> None:
    """Print JSON. Nothing is lost: what JSON itself leaves bare is written as JSON's own escape."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    # Newlines of the indentation are no control characters here; those within strings are escaped already.
    print(UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
