"""JSON that other people wrote: a key that is there twice is an error, where Python's reader keeps the last value."""

from __future__ import annotations

import json
from typing import Any


class RepeatedKey(ValueError):
    """An object has a key twice."""


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, RepeatedKey among them."""
    return json.loads(text, object_pairs_hook=unrepeated)


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these members. Raises RepeatedKey."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice in one object")
    return made
