"""How much one pass of sampling computes, which estimates of memory follow from. Imports nothing."""

from __future__ import annotations

PASS_TOKENS = 4096
"""Most tokens of one pass (`session`): bounds the memory of activations."""
