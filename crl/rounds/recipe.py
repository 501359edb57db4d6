"""Recipes: which stages a round is made of. The rooms of `crl` meet only here, through rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crl.config import Method
    from crl.rounds.stage import Recipe
    from crl.run.directory import RunDirectory


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
    bring(recipe.row_types)
    return recipe


def recipe_in(run: RunDirectory) -> Recipe:
    """The recipe of a run: that of its method, and in the rounds that a fork begins with that of who made them.

    Raises as :func:`recipe_of`, and RecordDamaged where the lineage of a fork is not what was written.
    """
    from crl.rounds.forked import forked
    from crl.run.lineage import method_in

    ancestors = run.lineage.ancestors
    if not ancestors:
        return recipe_of(run.method)
    methods = [*map(method_in, ancestors), run.method]
    recipe = recipe_of(methods[0])
    for ancestor, before, method in zip(ancestors, methods, methods[1:], strict=False):
        recipe = forked(recipe_of(method), recipe, before, ancestor.round)
    return recipe
