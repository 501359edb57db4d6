"""The recipe of a forked run: up to the round it was forked at what the parent's rounds were made of, its own after.

All that a flow, the engine and the record know of a run they ask its recipe. So they need not know of forks: the stages
of an inherited round are those that the parent's recipe had due in it, by the parent's method, and what a round reads
of them is where the parent put it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from crl.config import Method
from crl.rounds.banks import PUBLISHES
from crl.rounds.stage import Recipe, Stage


@dataclass(frozen=True)
class Inherited:
    """What a fork begins with."""

    recipe: Recipe
    """The parent's; of a fork of a fork it has its own inherited rounds."""
    method: Method
    round: int
    """The last round that the parent made."""


@dataclass(frozen=True)
class ForkedRecipe(Recipe):
    """A recipe whose first rounds are another's."""

    inherited: Inherited = dataclasses.field(kw_only=True)

    def stages_of(self, method: Method, round_number: int) -> tuple[Stage, ...]:
        """The stages due in a round, in order: by the parent's recipe and method in the rounds that it made."""
        before = self.inherited
        if round_number <= before.round:
            return before.recipe.stages_of(before.method, round_number)
        return super().stages_of(method, round_number)

    def resolve(self, method: Method, round_number: int, name: str, offset: int) -> tuple[int, str] | None:
        """(round, stage) that a read refers to; None where there is no such stage (its rows are none).

        Weights that this recipe does not train stay those of the round it was forked at.
        """
        if round_number == 0 and offset < 0:
            return None
        before, target = self.inherited, max(0, round_number + offset)
        if target <= before.round:
            return before.recipe.resolve(before.method, target, name, 0)
        if name in self.initial and all(stage.name != name for stage in self.stages):
            # Not trained here. A recipe without a bank has none to go on with: it reads that of round 0, as always.
            return before.recipe.resolve(before.method, 0 if name == PUBLISHES else before.round, name, 0)
        return super().resolve(method, round_number, name, offset)


def method_of_round(recipe: Recipe, method: Method, round_number: int) -> Method:
    """The method that a round is made with: of a run's own recipe and method, or of an inherited round those of the run
    that made it."""
    while isinstance(recipe, ForkedRecipe) and round_number <= recipe.inherited.round:
        before = recipe.inherited
        recipe, method = before.recipe, before.method
    return method


def forked(recipe: Recipe, parent: Recipe, parent_method: Method, round_number: int) -> ForkedRecipe:
    """The recipe of a run that goes on with `recipe` after a round of its parent."""
    fields = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(Recipe)}
    return ForkedRecipe(**fields, inherited=Inherited(parent, parent_method, round_number))
