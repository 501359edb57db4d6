"""How much one pass of sampling computes, which estimates of memory follow from. Imports nothing."""

from __future__ import annotations

_BLOCK = 64
"""Slots of a row are a multiple."""
PASS_TOKENS = 4096
"""Most tokens of one pass (`session`): bounds the memory of activations."""


def row_slots(context: int) -> int:
    """Slots of every row: those of the longest, and one at least that no row reaches."""
    return (context // _BLOCK + 1) * _BLOCK
