"""How much one pass of sampling computes, which estimates of memory follow from. Imports nothing."""

from __future__ import annotations

BLOCK = 64
"""Keys and values of a row have so many slots or a multiple, below those of the longest row."""
PASS_TOKENS = 4096
"""Most tokens of one pass (`session`): bounds the memory of activations."""


def slots_at_once(context: int) -> int:
    """Slots of a row that has them all at first: those of the longest row, and one at least that no row reaches."""
    return (context // BLOCK + 1) * BLOCK
