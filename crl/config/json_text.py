"""JSON that other people wrote: a key that is there twice is an error, where Python's reader keeps the last value."""

from __future__ import annotations

from typing import Any

from crl.limits import parse_json


class RepeatedKey(ValueError):
    """An object has a key twice."""


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, RepeatedKey among them."""
    return parse_json(text, pairs=unrepeated)


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these members. Raises RepeatedKey."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice in one object")
    return made
