"""Valid Unicode: what rows (UTF-8) and tokenizers can hold. This file imports nothing of the project."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
"""What stands where a text could not be read."""
_LONE = re.compile("[\ud800-\udfff]")


def valid_text(text: str) -> str:
    """The text with U+FFFD for each lone surrogate (JSON and undecoded bytes can spell one); any other character,
    control characters too, stays as it is."""
    return _LONE.sub(REPLACEMENT, text)
