"""What demonstrations in realms share: how many are made side by side, their stage, two symbols at random."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

WAVE = 500
"""Demonstrations made side by side."""
STAGE = "warm"
"""What demonstrations call their stage."""


def any_two(symbols: Iterable[str], random: np.random.Generator) -> tuple[str, str]:
    """Two different symbols, in random order."""
    first, second = random.choice(sorted(symbols), size=2, replace=False)
    return str(first), str(second)
