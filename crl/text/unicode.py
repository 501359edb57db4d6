"""Valid Unicode, which rows (UTF-8) and tokenizers can hold, and text as people may be shown it.

This file imports nothing of the project.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

REPLACEMENT = "\ufffd"
"""What is in the place of a text that could not be read."""
_MOST_NAMED = 5
_LONE = re.compile("[\ud800-\udfff]")
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb\ud800-\udfff"
_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Between letters of some scripts, and in emoji, these are part of what is seen; beside ASCII, or several, they are not.
_JOINERS = (
    "(?:(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f\u200c\u200d])|(?<=[\u200c\u200d])[\u200c\u200d])"
)
_SELECTORS = "(?:(?<![^\x00-\x7f])(?<![0-9#*])[\ufe00-\ufe0f]|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f])"
HIDDEN = re.compile(f"[{_HIDDEN}]|{_JOINERS}|{_SELECTORS}")
"""What a person does not see and a model reads: zero-width and direction marks, tag characters, fillers."""
UNSEEN = re.compile(f"[{_CONTROL}]|{HIDDEN.pattern}")
"""All control characters but tab and newline, what breaks a line, halves of surrogate pairs, and :data:`HIDDEN`."""


def valid_text(text: str) -> str:
    """The text with U+FFFD for each lone surrogate (JSON and undecoded bytes can spell one); any other character,
    control characters too, stays as it is."""
    return _LONE.sub(REPLACEMENT, text)


def escaped(text: str) -> str:
    r"""The text with every character of :data:`UNSEEN` written out, such as `\x1b` for ESC."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def hidden_in(text: str) -> str:
    """What a text hides, in words: `2 × U+200B (zero width space)`; empty where it hides nothing."""
    counts = Counter(HIDDEN.findall(text))
    return ", ".join(
        f"{count} × U+{ord(found):04X} ({unicodedata.name(found, 'no name').lower()})"
        for found, count in counts.most_common(_MOST_NAMED)
    ) + (f" and {len(counts) - _MOST_NAMED} others" if len(counts) > _MOST_NAMED else "")


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
