"""Evaluating a round of a run in this process: it loads the models itself and writes nothing into the record.

The rows can be kept beside the record (`crl/run/evaluations.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.errors import BadInput, DiskFull, RunDirectoryUnusable
from crl.rounds.evaluate import Choice, Evaluated, best_round, chosen_method, recorded_evaluations
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.evaluations import keep_evaluation


@dataclass(frozen=True)
class Keeping:
    """Where the rows of an evaluation were kept."""

    path: Path | None
    """None where they could not be."""
    text: str
    """The same in words."""


def evaluate_round(
    directory: RunDirectory,
    number: int | None = None,
    *,
    choice: Choice | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda metrics: None,
) -> Evaluated:
    """The round that was evaluated, by default the latest, and one row per episode, with and without the bank.

    `choice` says what of it is played. Raises BadInput for a round that is not complete enough, whose weights retention
    deleted, or for a choice that cannot be: `crl/rounds/evaluate.py`.
    """
    choice = choice or Choice()
    chosen_method(directory.method, choice)  # refused before anything is loaded
    recipe = recipe_in(directory)
    chosen = evaluated_round(directory, recipe, number)
    from crl.engine.services import services_here
    from crl.engine.targets import last_runtime
    from crl.rounds.evaluate import evaluate_again

    with services_here(directory) as services:
        return evaluate_again(
            directory,
            directory.method,
            recipe,
            chosen,
            services,
            choice=choice,
            progress=progress,
            broken_episodes_limit=last_runtime(directory.path).broken_episodes_limit,
        )


def evaluated_round(directory: RunDirectory, recipe: Recipe, number: int | None, *, best: bool = False) -> int:
    """A round that can be evaluated: the one that is asked for, the best of the record (:func:`best_round`), by default
    the latest.

    Raises BadInput for a round that is not complete enough, or whose weights retention deleted.
    """
    if best:
        number = best_round(directory.method, recorded_evaluations(directory))
        if number is None:
            raise BadInput(
                f"no round of {directory.path} was evaluated, so none is the best",
                expected="a run with held-out evaluations",
                next_step="name a round",
            )
    chosen = _latest(directory, recipe) if number is None else number
    if not _ready(directory, recipe, chosen):
        raise BadInput(
            f"round {chosen} of {directory.path} is not complete enough to evaluate",
            expected=f"a round from 0 to {_latest(directory, recipe)}",
            next_step="`crl status` shows what is complete",
        )
    _require_weights(directory, recipe, chosen)
    return chosen


def keep(directory: RunDirectory, evaluated: Evaluated) -> Keeping:
    """Keep the rows beside the record, with what was played. A run that cannot be written keeps none, and says so."""
    try:
        path, new = keep_evaluation(
            directory, evaluated.round, evaluated.rows, evaluated.inputs, settings_of(evaluated)
        )
    except (DiskFull, RunDirectoryUnusable) as error:
        return Keeping(None, f"the rows were not kept: {error.found}")
    return Keeping(path, f"the rows are kept in {path}" if new else f"the same rows were kept before, in {path}")


def settings_of(evaluated: Evaluated) -> dict[str, Any]:
    """What was played: conditions, and for each task the held-out seeds, as (first, how many)."""
    seeds: dict[str, set[int]] = {}
    for row in evaluated.rows:
        seeds.setdefault(row.family, set()).add(row.environment_seed)
    return {
        "conditions": sorted({row.condition for row in evaluated.rows}),
        "seeds": {task: [min(found), len(found)] for task, found in sorted(seeds.items())},
    }


def _reads(directory: RunDirectory, recipe: Recipe, number: int) -> list[tuple[int, str]] | None:
    """(round, stage) of all that the evaluation of a round reads; None where the recipe has none in it."""
    stages = recipe.preparation if number == 0 else recipe.stages
    stage = next((each for each in stages if each.name == "evaluate"), None)
    if stage is None:
        return None
    return recipe.inputs(directory.method, number, stage)


def _ready(directory: RunDirectory, recipe: Recipe, number: int) -> bool:
    """Whether everything that the evaluation of a round reads is complete."""
    places = _reads(directory, recipe, number)
    return places is not None and all(directory.is_complete(*place) for place in places)


def _pruned(directory: RunDirectory, recipe: Recipe, number: int) -> bool:
    """Whether retention deleted the weights that the evaluation of a round needs."""
    from crl.records import Weights
    from crl.run.pruned import pruned

    deleted = {entry.location for entry in pruned(directory.path)}
    checkpoints = [
        row["checkpoint"]
        for number_read, stage in _reads(directory, recipe, number) or ()
        for row in directory.read(number_read, stage, Weights).to_pylist()
    ]
    return any(path in deleted and not (directory.path / path).is_dir() for path in checkpoints)


def _require_weights(directory: RunDirectory, recipe: Recipe, number: int) -> None:
    """Raise BadInput for a round whose weights retention deleted: that is no damage, and is said before loading."""
    if not _pruned(directory, recipe, number):
        return
    ready = [each for each in directory.rounds() if _ready(directory, recipe, each)]
    left = [str(each) for each in ready if not _pruned(directory, recipe, each)]
    raise BadInput(
        f"the weights of round {number} were deleted by retention",
        expected=f"one of the rounds {', '.join(left)}" if left else "a round whose weights were kept",
        where=str(directory.path),
        next_step="the best evaluated round keeps its weights; runtime.keep_every and runtime.save_total_limit say "
        "which others do",
    )


def _latest(directory: RunDirectory, recipe: Recipe) -> int:
    ready = [number for number in directory.rounds() if _ready(directory, recipe, number)]
    if not ready:
        raise BadInput(f"{directory.path} has no round to evaluate yet", next_step="`crl resume` goes on with it")
    return max(ready)
