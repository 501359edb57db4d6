"""Valid Unicode, which rows (UTF-8) and tokenizers can hold, and text as people may be shown it.

This file imports nothing of the project.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

REPLACEMENT = "\ufffd"
"""What is in the place of a text that could not be read."""
_LONE = re.compile("[\ud800-\udfff]")
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""All control characters but tab and newline, what breaks a line or turns the direction of a text unseen, and halves of
surrogate pairs."""


def valid_text(text: str) -> str:
    """The text with U+FFFD for each lone surrogate (JSON and undecoded bytes can spell one); any other character,
    control characters too, stays as it is."""
    return _LONE.sub(REPLACEMENT, text)


def escaped(text: str) -> str:
    r"""The text with every character of :data:`UNSEEN` written out, such as `\x1b` for ESC."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value with every text in it changed: in lists, mappings (keys too) and dataclasses."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple | list):
        changed = [with_texts(each, change) for each in value]
        return changed if isinstance(value, list) else tuple(changed)
    if isinstance(value, Mapping):
        return {with_texts(name, change): with_texts(each, change) for name, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: with_texts(getattr(value, field.name), change) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
