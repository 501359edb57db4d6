"""Recipes: which stages a round is made of. The rooms of `crl` meet only here, through rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crl.config import Method
    from crl.recipes.stage import Recipe


def recipe_of(method: Method) -> Recipe:
    """The recipe that a method names."""
    from crl.recipes.complementary import build

    return build(method)
