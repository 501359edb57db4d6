"""A fork that takes the parent's rollouts of the next round, and runs what follows them by another method.

Taken are the stages of that round that play episodes, and those of the round that they read (the plan, judgments,
reflections). All that they read of earlier rounds is inherited, so they were played by the very weights, with the very
bank, that the fork's own round would play with: the behavior policy is the one of an ordinary round, and the stored
log-probabilities are its. It is one round: those of the round after were played by weights that the fork does not have.

What the rollouts depend on must be as it was. Of rows that follows from the stages: each has the same reads and writes
in both recipes. Roles that none of these stages needs may change. Of all other settings those may change that nothing
reads before the episodes are over: `RecipeConfig.after_rollouts`, which a test holds against what the stages read. An
update that rollouts of its own round follow (of an experience model, or of the actor between two probes) is taken with
them: its optimizer may not change, and its checkpoint has to be there.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from crl.config import Method
from crl.errors import BadInput
from crl.paths import quoted
from crl.records import Episode
from crl.rounds.fork_fit import check_weights
from crl.rounds.forked import ForkedRecipe
from crl.rounds.stage import Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.experiment_file import differences
from crl.run.manifest import key_of, parse_key

_OPTION = "--keep-rollouts"
OF_UPDATES = ("optimizer", "deepspeed")
"""Keys of a role that only its updates read."""
ALWAYS_AFTER = ("evaluation", *(f"roles.*.{key}" for key in OF_UPDATES))
"""Settings of updates and of evaluation, in every recipe."""
_MOST_SHOWN = 5


def rollout_stages(recipe: Recipe, method: Method, round_number: int) -> tuple[Stage, ...]:
    """Stages of a round that play episodes, and those of the round that they read, in order."""
    stages = {stage.name: stage for stage in recipe.stages_of(method, round_number)}
    waiting = [stage.name for stage in stages.values() if Episode in stage.writes]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        places = (recipe.resolve(method, round_number, read.stage, read.offset) for read in stages[name].reads)
        waiting += [place[1] for place in places if place and place[0] == round_number and place[1] not in found]
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
        read = {before.resolve(parent.method, number, each.stage, each.offset) for each in stage.reads}
        if read != {recipe.resolve(method, number, each.stage, each.offset) for each in other.reads}:
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
    updated = {stage.role for stage in played if stage.update}
    of_updates = [f"roles.{name}.{key}" for name in new.roles if name not in updated for key in OF_UPDATES]
    unneeded = [f"roles.{name}" for name in new.roles if name not in needed]
    free = ["evaluation", *of_updates, *new.recipe.after_rollouts(), *unneeded]
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
