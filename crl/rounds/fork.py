"""Forking a run: a new experiment that goes on from the state of a round, with the same method or another one.

The new run holds the parent's rounds up to that one, so every read of an earlier round (weights with their optimizer
state, the bank, counters, buffers) finds what the parent's next round would find. Everything is checked before anything
is written: the round, what the next rounds read of it, and whether it fits the method (`fork_fit.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crl.config import Experiment
from crl.errors import BadInput
from crl.paths import quoted
from crl.rounds.fork_fit import check_fits
from crl.rounds.forked import forked
from crl.rounds.kept_rollouts import kept_rollouts
from crl.rounds.recipe import recipe_in, recipe_of
from crl.rounds.stage import Recipe
from crl.run.branch import Branch, check_name_is_free, make_branch
from crl.run.directory import RunDirectory


def fork(
    parent: RunDirectory,
    round_number: int,
    experiment: Experiment,
    root: Path,
    *,
    keep_rollouts: bool = False,
    also: Callable[[Path], None] = lambda directory: None,
) -> RunDirectory:
    """Make the run `root/<name>` of an experiment, which goes on after a round of `parent`.

    With `keep_rollouts` it has the parent's rollouts of the next round too (`kept_rollouts.py`). `also` may add to its
    directory before it becomes a run. Raises BadInput, before anything is written, for
    a name that is taken, a round that is not there or not complete, a method that the state of the round does not fit,
    and one by which the rollouts would be others. `fork_run` of
    `crl/engine/targets.py` asks first whether the parent is intact.
    """
    branch = check_fork(parent, round_number, experiment, root, keep_rollouts=keep_rollouts)
    return make_branch(branch, experiment, root, also)


def check_fork(
    parent: RunDirectory, round_number: int, experiment: Experiment, root: Path, *, keep_rollouts: bool = False
) -> Branch:
    """What would be taken. Raises BadInput as :func:`fork`."""
    check_name_is_free(root, experiment.name)
    before = recipe_in(parent)
    check_round(parent, before, round_number)
    recipe = forked(recipe_of(experiment.method), before, parent.method, round_number)
    check_fits(parent, experiment.method, recipe)
    kept = kept_rollouts(parent, before, experiment.method, recipe) if keep_rollouts else ()
    return Branch(parent, round_number, kept)


def check_round(parent: RunDirectory, recipe: Recipe, round_number: int) -> None:
    """Raise BadInput unless every stage up to the end of a round is complete."""
    complete = -1
    while _is_complete(parent, recipe, complete + 1):
        complete += 1
    if 0 <= round_number <= complete:
        return
    known = parent.rounds()
    if round_number in known:
        missing = [
            stage.name
            for stage in recipe.stages_of(parent.method, round_number)
            if not parent.is_complete(round_number, stage.name)
        ]
        found = f"round {round_number} of {parent.path} is not finished" + (
            f": {missing[0]} is missing" if missing else ""
        )
    else:
        found = f"{parent.path} has no round {round_number}"
    raise BadInput(
        found,
        expected=f"a finished round: 0 to {complete}" if complete >= 0 else "a run with a finished round",
        where="--round",
        next_step=f"name one of them, or finish it with `crl resume {quoted(parent.path)}`",
    )


def _is_complete(run: RunDirectory, recipe: Recipe, round_number: int) -> bool:
    if round_number not in run.rounds():
        return False
    return all(run.is_complete(round_number, stage.name) for stage in recipe.stages_of(run.method, round_number))
