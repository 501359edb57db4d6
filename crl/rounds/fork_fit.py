"""Whether the state of a round fits the method that a fork goes on with.

What the next rounds read of it is what their stages declare. So each such read has to be there: the stage, and of
weights the row of the role, its base model, the checkpoint that retention may have deleted, and an optimizer state that
the update can load.
"""

from __future__ import annotations

from collections.abc import Iterator

from crl.config import Method, RoleConfig
from crl.errors import BadInput
from crl.records import Weights, rows_of
from crl.rounds.forked import ForkedRecipe
from crl.rounds.stage import BEFORE, Read, Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of

SAME_IN_FORKS = ("model", "lora")
"""Keys of a role that say whose weights it has."""
_OPTIMIZER = ("optimizer.kind", "deepspeed.zero_stage", "deepspeed.ranks")
"""Keys of a role that decide whether the optimizer state of a checkpoint can be loaded (`crl/learn/checkpoint.py`)."""


def check_fits(parent: RunDirectory, method: Method, recipe: ForkedRecipe) -> None:
    """Raise BadInput, saying what does not fit, for a method that cannot go on from the round that is inherited."""
    _check_embedder(parent, method)
    for before in _methods_before(recipe):
        for misfit in method.recipe.misfits(method, before):
            raise misfit
    for stage, read, place in _inherited_reads(method, recipe):
        owner = _weights_of(method, stage, read)
        if place is None:
            if owner is not None:
                raise _no_weights(parent, owner, f"recipe {recipe.inherited.recipe.name} has none")
            continue
        if not parent.is_complete(*place):
            raise BadInput(
                f"{stage.name} of recipe {recipe.name} reads {place[1]} of round {place[0]}, and {parent.path} has no "
                "such stage",
                expected="a recipe whose rounds go on from what the parent recorded",
                where="--recipe",
                next_step="fork with the recipe of the parent, or begin a new experiment with `crl train`",
            )
        if owner is not None:
            check_weights(parent, method, owner, place)


def _methods_before(recipe: Recipe) -> Iterator[Method]:
    """Those that made rounds that a fork begins with, the last ones first."""
    while isinstance(recipe, ForkedRecipe):
        before = recipe.inherited
        inner = before.recipe.inherited.round if isinstance(before.recipe, ForkedRecipe) else 0
        if before.round > inner:  # round 0 only prepares, and what an older run made is that one's
            yield before.method
        recipe = before.recipe


def _weights_of(method: Method, stage: Stage, read: Read) -> str | None:
    """The role whose weights a read is for: it has the role's name, or is that of an update's own last ones."""
    if read.name == BEFORE and stage.update:
        return stage.role
    return method.owner(read.name) if read.name in method.roles else None


def _inherited_reads(method: Method, recipe: ForkedRecipe) -> Iterator[tuple[Stage, Read, tuple[int, str] | None]]:
    """Reads of the rounds after the fork that refer to inherited ones, or to none."""
    first = recipe.inherited.round + 1
    furthest = max((-read.offset for stage in recipe.stages for read in stage.reads), default=0)
    for number in range(first, first + max(1, furthest)):
        for stage in recipe.stages_of(method, number):
            for read in stage.reads:
                place = recipe.resolve(method, number, read.stage, read.offset)
                if place is None or place[0] < first:
                    yield stage, read, place


def check_weights(parent: RunDirectory, method: Method, owner: str, place: tuple[int, str]) -> None:
    """Raise BadInput where the weights that a stage (round, name) wrote are not those to go on with by a method."""
    row = next((row for row in rows_of(Weights, parent.read(*place, Weights)) if row.role == owner), None)
    where = f"method.roles.{owner}"
    if row is None:
        raise _no_weights(parent, owner, f"{key_of(*place)} wrote none")
    before, role = _role(parent.method_of(*place), owner), method.role(owner)
    for key in SAME_IN_FORKS:
        if before is not None and getattr(before, key) != getattr(role, key):
            raise BadInput(
                f"the weights of round {place[0]} are those of {key} {getattr(before, key)!r}",
                expected="the same: a fork goes on with the weights that are there",
                where=f"{where}.{key}",
                next_step="take the change back, or begin a new experiment with `crl train`",
            )
    if row.checkpoint is None:
        return
    if not (parent.path / row.checkpoint).is_dir():
        raise BadInput(
            f"the checkpoint of role {owner} that the next round begins with was pruned: {row.checkpoint}",
            expected="a round whose checkpoints are kept: runtime.keep_checkpoints, runtime.keep_every",
            where="--round",
            next_step="fork at a later round; to fork anywhere, train with runtime.keep_every=1, which keeps them all",
        )
    if owner in method.trained() and before is not None:
        for key in _OPTIMIZER:
            old, new = _at(before, key), _at(role, key)
            if old != new:
                raise BadInput(
                    f"the optimizer state of role {owner} was written with {key} {old}, not {new}",
                    expected="the same: it is loaded as it is",
                    where=f"{where}.{key}",
                    next_step="take the change back, or begin a new experiment with `crl train`",
                )


def _no_weights(parent: RunDirectory, owner: str, why: str) -> BadInput:
    return BadInput(
        f"{parent.path} has no weights of role {owner}: {why}",
        expected="a role that the parent's recipe worked with",
        where=f"method.roles.{owner}",
        next_step="fork with a recipe of the same roles, or begin a new experiment with `crl train`",
    )


def _check_embedder(parent: RunDirectory, method: Method) -> None:
    """Vectors of the bank were made by one embedder; those of another mean nothing beside them."""
    before, after = parent.method.recipe.embedder(), method.recipe.embedder()
    if before is not None and after is not None and before.name != after.name:
        raise BadInput(
            f"the bank's vectors are those of the embedder {before.name}, not of {after.name}",
            expected="the same embedder",
            where="method.recipe",
            next_step="take the change back, or take the texts alone into a new experiment: `crl bank export` and "
            "`crl bank import`",
        )


def _role(method: Method, owner: str) -> RoleConfig | None:
    return method.role(owner) if owner in method.roles else None


def _at(role: RoleConfig, key: str) -> object:
    found: object = role
    for part in key.split("."):
        found = getattr(found, part)
    return getattr(found, "value", found)
