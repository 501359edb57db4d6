"""Complementary RL whose rounds could overlap: what a round plays with is of two rounds before it."""

from __future__ import annotations

from typing import ClassVar

from crl.recipes.complementary.config import BankRecipeConfig

KIND = f"{__name__}:OverlappedConfig"


class OverlappedConfig(BankRecipeConfig):
    """Another distance, and nothing else."""

    kind: str = KIND
    LAG: ClassVar[int] = 2
