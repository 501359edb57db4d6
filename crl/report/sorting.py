"""In which order the entries of a bank are listed. Apart from `bank.py` because a command line that starts needs it."""

from __future__ import annotations

from enum import StrEnum


class Sort(StrEnum):
    """An order of entries."""

    age = "age"
    """The oldest first."""
    newest = "newest"
    """The text written last first."""
    uses = "uses"
    """The most used first."""
    credit = "credit"
    """The highest mean outcome first; what was never used last."""
    harm = "harm"
    """The lowest mean outcome first; what was never used last."""
