"""Recipes: which stages a round is made of. The rooms of `crl` meet only here, through rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crl.config import Method
    from crl.recipes.stage import Recipe


def recipe_of(method: Method) -> Recipe:
    """The recipe that a method names."""
    import importlib

    module_name, _, function = method.recipe.BUILDER.partition(":")
    built: Recipe = getattr(importlib.import_module(module_name), function)(method)
    return built
