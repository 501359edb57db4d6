"""A recipe's config: its mechanisms, and what it says of itself before any of its stages is imported.

The classes are those of the recipes (`crl/recipes/<name>/config.py`, or another package's), found by `kind`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from crl.config.base import Model
from crl.config.registry import Registry
from crl.errors import BadInput

if TYPE_CHECKING:
    from crl.config.method import Method


@dataclass(frozen=True)
class RoleUse:
    """What a recipe does with a role."""

    trained: bool = True
    """Whether its weights are updated."""
    multi_turn: bool = False
    """Whether it answers over many turns of one conversation, so that its chat template must keep all of them."""


@dataclass(frozen=True)
class EmbedderUse:
    """The embedder that a recipe retrieves with."""

    name: str
    query_instruction: str | None = None


class RecipeConfig(Model):
    """Base class of every recipe's config. Derived classes carry the mechanisms as fields."""

    kind: str = Field(description="Which recipe: what a round is made of.")

    BUILDER: ClassVar[str]
    """`module:function` that builds the recipe (`crl.recipes.stage.Recipe`) of a `Method`: stages stay unloaded until
    somebody runs them."""

    def roles(self) -> Mapping[str, RoleUse]:
        """Roles that the recipe works with, by name; each must be configured in `method.roles`."""
        raise NotImplementedError(f"{type(self).__name__} has to name its roles")

    def prompts(self) -> frozenset[str]:
        """Names of the prompts that it needs, out of `method.prompts`."""
        return frozenset({"actor"})

    def embedder(self) -> EmbedderUse | None:
        """The embedder it retrieves with; None where it retrieves nothing."""
        return None

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Settings that are fine one by one and impossible together, each at its place; refused before any work."""
        return iter(())

    @property
    def has_bank(self) -> bool:
        """Whether it keeps an experience bank."""
        return False


RECIPES = Registry(
    what="recipe",
    group="crl.recipes",
    base=RecipeConfig,
    built_in={
        "complementary": "crl.recipes.complementary.config:ComplementaryConfig",
        "baseline": "crl.recipes.complementary.config:BaselineConfig",
        "static_online": "crl.recipes.complementary.config:StaticOnlineConfig",
        "experience_only": "crl.recipes.complementary.config:ExperienceOnlyConfig",
        "offline_bank": "crl.recipes.complementary.config:OfflineBankConfig",
    },
)
"""Recipes by kind; other packages add theirs in the entry-point group `crl.recipes`."""
