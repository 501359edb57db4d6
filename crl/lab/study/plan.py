"""From a study to its runs: every arm and seed as an experiment of its own, held against the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from crl.config import Experiment, Method
from crl.config.base import MOST_ROUNDS
from crl.config.load import is_index, parse_experiment, read_yaml
from crl.errors import BadInput, FrozenMethodChanged, RecordDamaged
from crl.lab.study.config import Study
from crl.lab.study.metrics import EVALUATE
from crl.rounds.fork import SAME_IN_FORKS
from crl.rounds.recipe import recipe_of
from crl.run import experiment_file
from crl.run.lineage import load_lineage

WARM_START = "warm_start"
"""The key of a recipe that says how the weights of round 0 are made."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One arm with one seed: an ordinary run."""

    arm: str
    seed: int
    rounds: int
    """Rounds the study wants of it."""
    experiment: Experiment
    path: Path
    """Its run directory, made or not."""
    parent: PlannedRun | None = field(default=None, repr=False)
    """The run of the same seed that prepares for it: it is a fork of that one, from round 0."""
    forks: list[PlannedRun] = field(default_factory=list, compare=False, repr=False)
    """Runs that it prepares for."""
    forking: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)
    """Held while it prepares for others, and they are made."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.experiment.name

    @property
    def begun(self) -> bool:
        """Whether there is such a run."""
        return (self.path / experiment_file.EXPERIMENT).exists()

    def rounds_done(self) -> int:
        """The last round of the study up to which every stage is complete; −1 before round 0."""
        from crl.rounds.recipe import recipe_in
        from crl.run.directory import RunDirectory

        run = RunDirectory(self.path, self.name, self.experiment.method)
        recipe = recipe_in(run)
        for number in range(self.rounds + 1):
            if not all(run.is_complete(number, stage.name) for stage in recipe.stages_of(run.method, number)):
                return number - 1
        return self.rounds

    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.rounds_done() == self.rounds


def study_directory(study: Study, root: Path) -> Path:
    """Where a study's runs and results are."""
    return Path(root) / study.name


def plan_runs(study: Study, root: Path) -> list[PlannedRun]:
    """Every run of a study, seed by seed, so that a study that is not finished has whole pairs already. Runs that
    another one prepares for come last, so that they rarely wait.

    Raises BadInput where a setting is wrong, two arms are the same, a seed reaches nothing, arms that are compared are
    evaluated on different tasks or after other rounds, an arm has other models or another warm start than the one that
    prepares for it, a run that is there begins with something else, or the last rounds are not evaluated;
    FrozenMethodChanged where a run was begun with another method than its arm has now.
    """
    arms = {name: _Arm(study, name) for name in study.arms}
    _check_arms(study, {name: arm.experiment(study.seeds[0]).method for name, arm in arms.items()})
    seeds = dict.fromkeys([*study.seeds, *(seed for name in study.arms for seed in study.seeds_of(name))])
    places = [(name, seed) for seed in seeds for name in arms if seed in study.seeds_of(name)]
    runs: dict[tuple[str, int], PlannedRun] = {}
    for name, seed in sorted(places, key=lambda place: study.arms[place[0]].prepared_by is not None):
        experiment, other = arms[name].experiment(seed), study.arms[name].prepared_by
        path = study_directory(study, root) / experiment.name
        parent = None if other is None else runs[other, seed]
        runs[name, seed] = run = PlannedRun(name, seed, study.rounds_of(name), experiment, path, parent)
        if parent is not None:
            parent.forks.append(run)
    for run in runs.values():
        _check_frozen(run)
    return list(runs.values())


def chosen(runs: Sequence[PlannedRun], arms: Sequence[str] | None, seeds: Sequence[int] | None) -> list[PlannedRun]:
    """The runs of some arms and seeds only. Raises BadInput for one that the study does not have, and where
    nothing is left."""
    for wanted, known, word in (
        (arms, list(dict.fromkeys(run.arm for run in runs)), "arm"),
        (seeds, sorted({run.seed for run in runs}), "seed"),
    ):
        unknown = [each for each in wanted or () if each not in known]
        if unknown:
            raise BadInput(
                f"the study has no {word} {unknown[0]}", expected=f"one of {', '.join(str(each) for each in known)}"
            )
    found = [run for run in runs if (arms is None or run.arm in arms) and (seeds is None or run.seed in seeds)]
    if not found:
        raise BadInput(
            "--arms and --seeds select no run of the study",
            expected=f"arms of {', '.join(dict.fromkeys(run.arm for run in runs))}, and seeds that they have",
            next_step="name some, or leave the option out for all",
        )
    return found


class _Arm:
    """An arm of a study: its experiment for any seed."""

    def __init__(self, study: Study, name: str) -> None:
        self._study, self._name = study, name
        parsed = self._parse(read_yaml(study.base), {**study.set, **study.arms[name].set})
        self._plain = parsed.model_dump(mode="json")
        if "trackers" not in parsed.runtime.model_fields_set:
            # A study is read from its table: only who asks for a tracker pays for one in each of its runs.
            self._plain["runtime"]["trackers"] = []
        if not parsed.runtime.keep_every and any(arm.prepared_by == name for arm in study.arms.values()):
            # Round 0 alone stays: an arm that is added when its run has ended can begin with it.
            self._plain["runtime"]["keep_every"] = MOST_ROUNDS
        # Looked up in the whole experiment, where every default and every repeated family is written out.
        self._keys = self._seed_keys()

    def experiment(self, seed: int) -> Experiment:
        """The experiment of this arm with a seed."""
        parsed = self._parse(self._plain, dict.fromkeys(self._keys, seed))
        return parsed.model_copy(update={"name": self._study.run_name(self._name, seed)})

    def _parse(self, data: dict[str, Any], overrides: Mapping[str, Any]) -> Experiment:
        base = self._study.base
        try:
            return parse_experiment(data, overrides, base=base.parent, where=str(base))
        except BadInput as error:
            raise type(error)(
                error.found, expected=error.expected, where=f"arm {self._name}", next_step=error.next_step
            ) from None

    def _seed_keys(self) -> list[str]:
        found = []
        for key in self._study.seed_keys:
            places = _expanded(self._plain, key.split("."))
            if not places:
                raise BadInput(
                    f"seed_keys: {key!r} leads nowhere in this arm",
                    expected="the dotted key of a number, `*` for each item of a list",
                    where=f"arm {self._name}",
                )
            found += places
        return found


def _expanded(value: Any, parts: Sequence[str]) -> list[str]:
    """The dotted keys that a key with `*` stands for; none where a part of it is not there."""
    if not parts:
        return [""]
    first, rest = parts[0], parts[1:]
    if isinstance(value, list):
        numbers = range(len(value)) if first == "*" else [int(first)] if is_index(first) else []
        items = {str(number): value[number] for number in numbers if number < len(value)}
    else:
        items = {first: value[first]} if isinstance(value, dict) and first in value else {}
    below = {key: _expanded(item, rest) for key, item in items.items()}
    if not all(below.values()):
        return []
    return [f"{key}.{each}".removesuffix(".") for key, found in below.items() for each in found]


def _check_arms(study: Study, methods: Mapping[str, Method]) -> None:
    """Hold the arms, all with one seed, against each other."""
    for first, second in combinations(methods, 2):
        if methods[first].digest() == methods[second].digest():
            raise BadInput(
                f"arms {first} and {second} have the same method",
                expected="arms that differ",
                where="arms",
                next_step="leave one out: its runs would be the other's",
            )
    for name, method in methods.items():
        _check_preparation(study, name, methods)
        rounds, every = study.rounds_of(name), method.evaluation.every
        if every == 0 or rounds % every:
            raise BadInput(
                f"round {rounds}, the last of arm {name}, is not evaluated",
                expected=f"evaluation.every that divides {rounds}, found {every}",
                where=f"arm {name}",
            )
        _check_last(study, name, method)
        for reference in study.references_of(name):
            if study.last > 1 and every != methods[reference].evaluation.every:
                raise BadInput(
                    f"arm {name} is evaluated every {every} rounds, and {reference}, which it is compared with, every "
                    f"{methods[reference].evaluation.every}: their last {study.last} evaluations are of other rounds",
                    expected="the same method.evaluation.every, or `last: 1`",
                    where=f"arm {name}",
                    next_step="take the change back, or let `compare_with` of the arm be [] for no comparison",
                )
            if _evaluated(method) != _evaluated(methods[reference]):
                raise BadInput(
                    f"arm {name} is evaluated on other tasks than {reference}, which it is compared with",
                    expected="the same families, environments, held-out seeds and temperature",
                    where=f"arm {name}",
                    next_step="let `compare_with` of the arm name one with the same tasks, or be [] for no comparison",
                )


def _check_last(study: Study, name: str, method: Method) -> None:
    """Raise BadInput where an arm is not evaluated, or its last evaluations reach back to before training, or to before
    a change of its families."""
    recipe, rounds, every = recipe_of(method), study.rounds_of(name), method.evaluation.every
    if EVALUATE not in [stage.name for stage in recipe.stages_of(method, rounds)]:
        raise BadInput(
            f"recipe {recipe.name} has no stage {EVALUATE}",
            expected="a recipe that evaluates: arms are compared by their held-out success",
            where=f"arm {name}",
        )
    changed = {change.round for family in method.families for change in family.changes}
    starts = sorted({1, *(number for number in changed if number <= rounds)})
    spans = list(zip(starts, [*(start - 1 for start in starts[1:]), rounds], strict=True))
    for first, last in spans if len(spans) == 2 else spans[-1:]:  # what is compared around one change, or at the end
        found = last // every - (first - 1) // every
        if found < study.last and study.last > 1:
            raise BadInput(
                f"`last` is {study.last}, and arm {name} is evaluated {found} times from round {first} to {last}",
                expected="evaluations of one world, after training began",
                where="last",
                next_step=f"lower `last`, or evaluate more often than every {every} rounds (method.evaluation.every)",
            )


def _check_preparation(study: Study, name: str, methods: Mapping[str, Method]) -> None:
    """Raise BadInput for an arm that cannot begin with what another one prepares: before anything is run."""
    other = study.arms[name].prepared_by
    if other is None:
        return
    parent, method = methods[other], methods[name]
    for role in method.uses():
        if role not in parent.uses():
            raise BadInput(
                f"arm {other}, which prepares for arm {name}, has no role {role}",
                expected="an arm whose preparation makes weights of every role",
                where=f"arm {name}",
                next_step="let the one with more roles prepare, or leave prepared_by out",
            )
        for key in SAME_IN_FORKS:
            before, after = getattr(parent.role(role), key), getattr(method.role(role), key)
            if before != after:
                raise BadInput(
                    f"method.roles.{role}.{key} is {after!r} in arm {name}, and {before!r} in {other}, which prepares "
                    "for it",
                    expected="the same",
                    where=f"arm {name}",
                    next_step="take the change back, or leave prepared_by out",
                )
    # Round 0 is the other arm's, made and evaluated by its method: what this one says of it would change nothing.
    prepared = getattr(parent.recipe, WARM_START, None)
    for what, same in (
        # A recipe that knows no warm start goes on from what there is.
        ("a warm start", getattr(method.recipe, WARM_START, prepared) == prepared),
        ("held-out tasks", _tasks(method) == _tasks(parent)),
    ):
        if not same:
            raise BadInput(
                f"arm {name} has {what} of its own, and begins with round 0 of {other}, which prepares for it",
                expected=f"the same as in {other}",
                where=f"arm {name}",
                next_step="leave prepared_by out, or name an arm with this preparation (of a scale: one that is in its "
                "`arms`)",
            )


def _evaluated(method: Method) -> Any:
    """What held-out success is measured on."""
    return _tasks(method), [family.changes for family in method.families]


def _tasks(method: Method) -> Any:
    """The same, before any of it changes."""
    tasks = [(family.name, family.environment, family.evaluation_seeds) for family in method.families]
    return tasks, method.evaluation.temperature


def _check_frozen(run: PlannedRun) -> None:
    if not run.begun:
        return
    try:
        experiment_file.check_same(run.path, run.experiment)
        _check_beginning(run)
    except FrozenMethodChanged as error:
        raise FrozenMethodChanged(
            f"arm {run.arm}, seed {run.seed}: {error.found}",
            expected=error.expected,
            where=error.where,
            next_step="take the change back, give the study or the arm another name, or remove that run",
        ) from None
    except RecordDamaged:
        return  # opening the run holds it against its manifests, and says what is wrong


def _check_beginning(run: PlannedRun) -> None:
    """Raise BadInput where a run that is there does not begin with what its arm begins with now."""
    found = load_lineage(run.path).parent
    is_fork = None if found is None else (found.experiment, found.round, found.method_digest)
    wanted = None if run.parent is None else (run.parent.name, 0, run.parent.experiment.method.digest())
    if is_fork == wanted:
        return
    begins = "a round 0 of its own" if found is None else f"rounds 0 to {found.round} of {found.experiment}"
    raise BadInput(
        f"the run {run.name} begins with {begins}",
        expected="a round 0 of its own" if run.parent is None else f"round 0 of {run.parent.name}, as its arm is now",
        where=str(run.path),
        next_step="take the change back, give the study or the arm another name, or remove that run",
    )
