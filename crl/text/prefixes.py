"""What sequences of ids have in common."""

from __future__ import annotations

from collections.abc import Sequence


def shared_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """How many ids (or whatever they hold) two sequences have in common from the first on."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
