"""Why consolidation refuses an operation: reason codes, and with some of them the entry that says it already."""

from __future__ import annotations

import dataclasses
from enum import StrEnum


class Rejection(StrEnum):
    """Why an operation changed nothing."""

    unknown_kind = "unknown_kind"
    unknown_entry = "unknown_entry"
    other_family = "other_family"
    entry_exists = "entry_exists"
    duplicate = "duplicate"
    near_duplicate = "near_duplicate"
    unchanged = "unchanged"
    empty_text = "empty_text"
    text_too_long = "text_too_long"
    bad_text = "bad_text"
    bad_parents = "bad_parents"


REPEATS = (Rejection.duplicate, Rejection.near_duplicate, Rejection.unchanged)
"""Rejections whose event names, in `repeats`, the entry that says it already."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why one operation changed nothing: a :class:`Rejection`, or what a person said."""

    reason: str
    repeats: str | None = None
    """The entry that says it already, where that is the reason."""
