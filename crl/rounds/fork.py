"""Forking a run: a new experiment that goes on from the state of a round, with the same method or another one.

The new run holds the parent's rounds up to that one, so every read of an earlier round (weights with their optimizer
state, the bank, counters, buffers) finds what the parent's next round would find. Everything is checked before anything
is written: the round, what the next rounds read of it, and whether it fits the method. What they read is what their
stages declare. So each such read has to be there: the stage, and of weights the row of the role, its base model, the
checkpoint that retention may have deleted, and an optimizer state that the update can load.

A fork may also take the parent's rollouts of the next round, and run what follows them by another method. Taken are the
stages of that round that play episodes, and those of the round that they read (the plan, critiques, reflections). All
that they read of earlier rounds is inherited, so they were played by the very weights, with the very bank, that the
fork's own round would play with: the behavior policy is the one of an ordinary round, and the stored log-probabilities
are its. It is one round: those of the round after were played by weights that the fork does not have.

What the rollouts depend on must be as it was. Of rows that follows from the stages: each has the same reads and writes
in both recipes. Roles that none of these stages needs may change. Of all other settings those may change that nothing
reads before the episodes are over: `RecipeConfig.after_rollouts`, which a test holds against what the stages read. An
update that rollouts of its own round follow (of an experience model, or of the actor between two probes) is taken with
them: its optimizer may not change, and its checkpoint has to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from crl.config import Experiment, Method, RoleConfig
from crl.errors import BadInput
from crl.paths import quoted
from crl.records import Episode, Weights, rows_of
from crl.rounds.recipe import recipe_in, recipe_of
from crl.rounds.stage import BEFORE, ForkedRecipe, Read, Recipe, Stage, forked
from crl.run.branch import Branch, check_name_is_free, make_branch
from crl.run.directory import RunDirectory
from crl.run.experiment_file import differences
from crl.run.manifest import key_of, parse_key

SAME_IN_FORKS = ("model", "lora")
"""Keys of a role that say whose weights it has."""
_OPTIMIZER = ("optimizer.kind", "deepspeed.zero_stage", "deepspeed.ranks")
"""Keys of a role that decide whether the optimizer state of a checkpoint can be loaded (`crl/learn/checkpoint.py`)."""
_OPTION = "--keep-rollouts"
OF_UPDATES = ("optimizer", "deepspeed")
"""Keys of a role that only its updates read."""
ALWAYS_AFTER = ("evaluation", *(f"roles.*.{key}" for key in OF_UPDATES))
"""Settings of updates and of evaluation, in every recipe."""
_MOST_SHOWN = 5


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

    With `keep_rollouts` it has the parent's rollouts of the next round too. `also` may add to its
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


def check_fits(parent: RunDirectory, method: Method, recipe: ForkedRecipe) -> None:
    """Raise BadInput, saying what does not fit, for a method that cannot go on from the round that is inherited."""
    _check_embedder(parent, method)
    for before in _methods_before(recipe):
        for misfit in method.recipe.fork_problems(method, before):
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
                places = recipe.read_keys(method, number, stage, read)
                yield from ((stage, read, place) for place in places if place[0] < first)
                if not places:
                    yield stage, read, None


def check_weights(parent: RunDirectory, method: Method, owner: str, stage_key: tuple[int, str]) -> None:
    """Raise BadInput where the weights that a stage (round, name) wrote are not those to go on with by a method."""
    row = next((row for row in rows_of(Weights, parent.read(*stage_key, Weights)) if row.role == owner), None)
    where = f"method.roles.{owner}"
    if row is None:
        raise _no_weights(parent, owner, f"{key_of(*stage_key)} wrote none")
    before, role = _role(parent.method_of(*stage_key), owner), method.role(owner)
    for key in SAME_IN_FORKS:
        if before is not None and getattr(before, key) != getattr(role, key):
            raise BadInput(
                f"the weights of round {stage_key[0]} are those of {key} {getattr(before, key)!r}",
                expected="the same: a fork goes on with the weights that are there",
                where=f"{where}.{key}",
                next_step="take the change back, or begin a new experiment with `crl train`",
            )
    if row.checkpoint is None:
        return
    if not (parent.path / row.checkpoint).is_dir():
        raise BadInput(
            f"the checkpoint of role {owner} that the next round begins with was pruned: {row.checkpoint}",
            expected="a round whose checkpoints are kept: runtime.save_total_limit, runtime.keep_every",
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


def rollout_stages(recipe: Recipe, method: Method, round_number: int) -> tuple[Stage, ...]:
    """Stages of a round that play what is trained, and those of the round that they read, in order."""
    stages = {stage.name: stage for stage in recipe.stages_of(method, round_number)}
    waiting = [stage.name for stage in stages.values() if Episode in stage.writes and not stage.untrained]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        places = recipe.inputs(method, round_number, stages[name])
        waiting += [place[1] for place in places if place[0] == round_number and place[1] not in found]
    return tuple(stage for name, stage in stages.items() if name in found)


def kept_rollouts(parent: RunDirectory, before: Recipe, method: Method, recipe: ForkedRecipe) -> tuple[str, ...]:
    """Names of the stages to take of the round after the fork. Raises BadInput where its rollouts cannot be kept."""
    number = recipe.inherited.round + 1
    played = rollout_stages(before, parent.method, number)
    names = tuple(stage.name for stage in played)
    missing = [name for name in names if not parent.is_complete(number, name)]
    if missing or not names:
        raise BadInput(
            f"{parent.path} has no rollouts of round {number}"
            + (f": {missing[0]} is not complete" if names else f": recipe {before.name} plays no episodes in it"),
            expected="a parent that has played the round after the one it is forked at",
            where=_OPTION,
            next_step=f"fork at an earlier round, or play it first: crl resume {quoted(parent.path)} --rounds 1",
        )
    _check_same_stages(parent, before, method, recipe, played)
    _check_read_what_is_taken(parent, number, names)
    _check_settings(parent.method, method, recipe, played)
    for stage in played:
        if stage.update and stage.role is not None:
            check_weights(parent, method, stage.role, (number, stage.name))
    return names


def _check_same_stages(
    parent: RunDirectory, before: Recipe, method: Method, recipe: ForkedRecipe, played: tuple[Stage, ...]
) -> None:
    number = recipe.inherited.round + 1
    own = {stage.name: stage for stage in rollout_stages(recipe, method, number)}
    for stage in played:
        other = own.pop(stage.name, None)
        if other is None:
            raise _refused(f"{stage.name} is not among the stages that play a round of the changed method")
        if stage.role != other.role or set(stage.writes) != set(other.writes):
            raise _refused(f"{stage.name} writes other rows, or needs another role, by the changed method")
        if {*before.inputs(parent.method, number, stage)} != {*recipe.inputs(method, number, other)}:
            raise _refused(f"{stage.name} reads other stages by the changed method")
    if own:
        raise _refused(f"{next(iter(own))} would play in it too")


def _check_read_what_is_taken(parent: RunDirectory, number: int, names: tuple[str, ...]) -> None:
    """By the record, and not only by what the stages declare: nothing that was read stays behind."""
    for name in names:
        for key in parent.manifest(number, name).digested.inputs:
            read = parse_key(key)
            if read[0] >= number and not (read[0] == number and read[1] in names):
                raise _refused(f"{key_of(number, name)} read {key}, which is not taken")


def _check_settings(old: Method, new: Method, recipe: Recipe, played: tuple[Stage, ...]) -> None:
    """Raise BadInput where a setting that differs may be one that the rollouts depend on."""
    named = {
        name for stage in played for name in (stage.role, *(read.name for read in stage.reads)) if name is not None
    }
    needed = named | {method.owner(name) for method in (old, new) for name in named & set(method.roles)}
    on_bases = [(name, role.base) for each in (old, new) for name, role in each.roles.items() if role.base is not None]
    needed |= {name for both in on_bases if needed & {*both} for name in both}
    updated = {stage.role for stage in played if stage.update}
    of_updates = [f"roles.{name}.{key}" for name in new.roles if name not in updated for key in OF_UPDATES]
    unneeded = [f"roles.{name}" for name in new.roles if name not in needed]
    free = ["evaluation", *of_updates, *new.recipe.after_rollouts(new), *unneeded]
    changes = [key for key, *_ in differences(old.model_dump(mode="json"), new.model_dump(mode="json"))]
    bound = [key for key in changes if not any(within(key, each) for each in free)]
    if bound:
        listed = ", ".join(f"method.{key}" for key in bound[:_MOST_SHOWN])
        more = f" and {len(bound) - _MOST_SHOWN} more" if len(bound) > _MOST_SHOWN else ""
        raise BadInput(
            f"the recorded rollouts would not be those of the changed method: they may depend on {listed}{more}",
            expected="changes of what follows the rollouts: " + ", ".join(f"method.{each}" for each in sorted(free)),
            where=_OPTION,
            next_step="take these changes back, or fork without --keep-rollouts: the round is then played again",
        )


def within(key: str, pattern: str) -> bool:
    """Whether a dotted key is what a pattern names, or a part of it; `*` stands for one name."""
    names, wanted = key.split("."), pattern.split(".")
    return len(names) >= len(wanted) and all(map(fnmatchcase, names, wanted))


def _refused(reason: str) -> BadInput:
    return BadInput(
        f"the recorded rollouts would not be those of the changed method: {reason}",
        expected="the same stages up to the end of the episodes, with the same reads and writes",
        where=_OPTION,
        next_step="take the change back, or fork without --keep-rollouts: the round is then played again",
    )
