"""Recipes: which stages a round is made of. The rooms of `crl` meet only here, through rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crl.config import Method
    from crl.recipes.stage import Recipe


def recipe_of(method: Method) -> Recipe:
    """The recipe that a method names. Raises BadInput where its builder cannot be imported."""
    from crl.checks.suites import bring
    from crl.config.registry import load_object
    from crl.errors import BadInput

    reference = method.recipe.BUILDER
    try:
        builder = load_object(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"the recipe {method.recipe.kind!r} cannot be loaded from {reference}: {error}",
            expected="module:function, a function that takes a Method and returns a Recipe",
            where="BUILDER of its config class",
        ) from error
    recipe: Recipe = builder(method)
    for row_type, suite in recipe.suites.items():
        bring(row_type, suite)
    return recipe
