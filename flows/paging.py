"""Everything that a list of the server holds: it answers a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

PAGE = 200
"""Items asked for at once."""


def all_pages(read: Callable[[int], Sequence[T]]) -> list[T]:
    """Every item; `read` takes an offset and gives at most :data:`PAGE` items from there."""
    found: list[T] = []
    while True:
        page = read(len(found))
        found += page
        if len(page) < PAGE:
            return found
