"""Evaluating a round of a run in this process: it loads the models itself and writes nothing into the record."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from crl.config import SeedRange
from crl.errors import BadInput
from crl.recipes import recipe_of
from crl.recipes.stage import Recipe
from crl.records import Evaluation
from crl.run.directory import RunDirectory


def evaluate_round(
    directory: RunDirectory,
    number: int | None = None,
    *,
    seeds: SeedRange | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> tuple[int, list[Evaluation]]:
    """The round that was evaluated, by default the latest, and one row per episode, with and without the bank.

    `seeds` replaces the held-out seeds of every family. Raises BadInput for a round that is not complete enough, whose
    weights retention deleted, or for seeds that training draws from.
    """
    recipe = recipe_of(directory.method)
    chosen = _latest(directory, recipe) if number is None else number
    if not _ready(directory, recipe, chosen):
        raise BadInput(
            f"round {chosen} of {directory.path} is not complete enough to evaluate",
            expected=f"a round from 0 to {_latest(directory, recipe)}",
            next_step="`crl status` shows what is complete",
        )
    _require_weights(directory, recipe, chosen)
    from crl.engine.services import EngineServices, prepare_environment
    from crl.recipes.evaluate_again import evaluate_again

    # Before torch is imported: this process is the engine here.
    os.environ.update(prepare_environment(directory.method.threads))
    services = EngineServices(directory)
    try:
        return chosen, evaluate_again(
            directory, directory.method, recipe, chosen, services, seeds=seeds, progress=progress
        )
    finally:
        services.close()


def _ready(directory: RunDirectory, recipe: Recipe, number: int) -> bool:
    """Whether everything that the evaluation of a round reads is complete."""
    stages = recipe.preparation if number == 0 else recipe.stages
    stage = next((each for each in stages if each.name == "evaluate"), None)
    if stage is None:
        return False
    resolved = [recipe.resolve(directory.method, number, read.stage, read.offset) for read in stage.reads]
    return all(place is None or directory.is_complete(*place) for place in resolved)


def _pruned(directory: RunDirectory, recipe: Recipe, number: int) -> bool:
    """Whether retention deleted the weights that the evaluation of a round needs."""
    from crl.recipes.update import update_name
    from crl.recipes.weights import CHECKPOINT
    from crl.records import Weights
    from crl.run.prunelog import pruned

    owner = directory.method.owner("actor")
    place = recipe.resolve(directory.method, number, update_name(owner), 0)
    if place is None:
        return False
    deleted = {f"rounds/{entry.round:04d}/{entry.stage}/{CHECKPOINT}" for entry in pruned(directory.path)}
    rows = directory.read(*place, Weights).to_pylist()
    return any(
        row["role"] == owner and row["checkpoint"] in deleted and not (directory.path / row["checkpoint"]).is_dir()
        for row in rows
    )


def _require_weights(directory: RunDirectory, recipe: Recipe, number: int) -> None:
    """Raise BadInput for a round whose weights retention deleted: that is no damage, and is said before loading."""
    if not _pruned(directory, recipe, number):
        return
    ready = [each for each in directory.rounds() if _ready(directory, recipe, each)]
    left = [str(each) for each in ready if not _pruned(directory, recipe, each)]
    raise BadInput(
        f"the actor's weights of round {number} were deleted by retention",
        expected=f"one of the rounds {', '.join(left)}" if left else "a round whose weights were kept",
        where=str(directory.path),
        next_step="runtime.keep_every and runtime.keep_checkpoints say which weights later rounds keep",
    )


def _latest(directory: RunDirectory, recipe: Recipe) -> int:
    ready = [number for number in directory.rounds() if _ready(directory, recipe, number)]
    if not ready:
        raise BadInput(f"{directory.path} has no round to evaluate yet", next_step="`crl resume` goes on with it")
    return max(ready)
