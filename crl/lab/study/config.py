"""A study file: arms, seeds, and what is compared with what. Reading it, and errors a person can act on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from crl.config.base import Model
from crl.config.load import listed_errors, read_yaml, readable
from crl.errors import BadInput
from crl.paths import experiment_file

Seed = Annotated[int, Field(ge=0, lt=2**32)]
ArmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
_LONGEST_NAME = 63
"""Characters an experiment's name may have."""
_OVERRIDES = ("method.", "runtime.")


def _of_an_experiment(overrides: dict[str, Any]) -> dict[str, Any]:
    for key in overrides:
        if not key.startswith(_OVERRIDES):
            raise ValueError(f"{key!r} is no key of an experiment; expected one that starts with 'method.'")
    return overrides


Overrides = Annotated[dict[str, Any], AfterValidator(_of_an_experiment)]


class Arm(Model):
    """What one arm changes of the base experiment."""

    title: str | None = Field(None, min_length=1, max_length=80, description="Title in tables; null: its name.")
    switch: str | None = Field(
        None, min_length=1, max_length=80, description="The mechanism that it switches, in a study of mechanisms."
    )
    set: Overrides = Field({}, description="Changed keys of the base experiment, with dots.")
    seeds: list[Seed] | None = Field(None, min_length=1, description="Its seeds; null: the study's.")
    rounds: int | None = Field(None, ge=1, le=100_000, description="Its rounds; null: the study's.")
    prepared_by: str | None = Field(
        None,
        description="Another arm whose round 0 (such as a warm start) it shares, seed by seed: runs are forks of "
        "that arm's.",
    )
    compare_with: str | list[str] | None = Field(
        None, description="Arms to compare it with; null: the study's; []: none."
    )


class Scale(Model):
    """Arms again at several values of one thing."""

    title: str = Field(min_length=1, max_length=40, description="What varies: the label of the axis.")
    values: dict[Annotated[float, Field(ge=0, le=1e9)], dict[str, Any]] = Field(
        min_length=2, description="Keys that each value sets; {}: the arms unchanged."
    )
    arms: list[str] = Field(min_length=1, description="Arms to run at each value.")
    seeds: list[Seed] | None = Field(None, min_length=1, description="Its seeds; null: the arms'.")


class Study(Model):
    """A question, the arms that answer it, and the seeds they are reported on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$", description="Name, also of its directory.")
    question: str = Field("", max_length=2000, description="Its question, in a sentence.")
    base: Path = Field(description="Experiment file that the arms change, relative to this file.")
    set: Overrides = Field({}, description="Keys that every arm sets, with dots.")
    arms_from: Path | None = Field(
        None,
        description="Another study file whose arms run here too; arms of the same name replace them.",
    )
    warm_starts: list[Path] = Field([], description="Warm-start files to make first, relative to this file.")
    rounds: int = Field(ge=1, le=100_000, description="Rounds per run.")
    seeds: list[Seed] = Field(min_length=1, description="Seeds to report.")
    tuned_on: list[Seed] = Field([], description="Seeds that settings were tuned on; none is reported.")
    seed_keys: list[str] = Field(
        ["method.seed"], min_length=1, description="Keys that take the seed; `*` stands for each item of a list."
    )
    compare_with: str | list[str] = Field([], description="Arms that every other arm is compared with, seed by seed.")
    level: float = Field(0.5, gt=0, le=1, description="Success level of the columns `rounds to` and `episodes to`.")
    last: int = Field(1, ge=1, le=1000, description="Final success is the mean of the last N evaluations.")
    arms: dict[ArmName, Arm] = Field(min_length=1, description="Arms by name.")
    scales: dict[ArmName, Scale] = Field({}, description="Things to vary, by a short name.")

    def seeds_of(self, arm: str) -> list[int]:
        """Seeds an arm is reported on."""
        own = self.arms[arm].seeds
        return self.seeds if own is None else own

    def rounds_of(self, arm: str) -> int:
        """Rounds of an arm's runs."""
        return self.arms[arm].rounds or self.rounds

    def title_of(self, arm: str) -> str:
        """What tables call an arm."""
        return self.arms[arm].title or arm

    def references_of(self, arm: str) -> list[str]:
        """The arms that an arm's differences are against: never itself."""
        own = self.arms[arm].compare_with
        return [name for name in _listed(self.compare_with if own is None else own) if name != arm]

    def point_of(self, scale: str, arm: str, value: float) -> str:
        """The arm that an arm is at a value of a scale: itself where the value sets nothing."""
        if not self.scales[scale].values[value]:
            return arm
        return f"{arm}_{scale}_{value:.12g}".replace(".", "_").replace("-", "m")

    def run_name(self, arm: str, seed: int) -> str:
        """Name of the run of an arm and a seed."""
        return f"{self.name}-{arm}-s{seed}"

    @model_validator(mode="after")
    def _holds_together(self) -> Study:
        for references in (self.compare_with, *(arm.compare_with or [] for arm in self.arms.values())):
            for reference in _listed(references):
                if reference not in self.arms:
                    raise ValueError(f"compare_with {reference!r} is no arm; arms: {', '.join(self.arms)}")
        for name, scale in self.scales.items():
            unknown = [arm for arm in scale.arms if arm not in self.arms]
            if unknown:
                raise ValueError(f"scales.{name}: {unknown[0]!r} is no arm; arms: {', '.join(self.arms)}")
            for arm in scale.arms:
                as_it_is = [value for value, changes in scale.values.items() if not changes]
                if scale.seeds and as_it_is and set(scale.seeds) != set(self.seeds_of(arm)):
                    raise ValueError(
                        f"scales.{name}: its seeds are not those of arm {arm}, which is its value {as_it_is[0]:g}"
                    )
        for name in self.arms:
            self._check_preparation(name)
            seeds = self.seeds_of(name)
            if len(set(seeds)) != len(seeds):
                raise ValueError(f"arm {name}: a seed appears twice in {seeds}")
            tuned = sorted(set(seeds) & set(self.tuned_on))
            if tuned:
                raise ValueError(
                    f"arm {name}: settings were chosen on seeds {tuned}, which are in tuned_on; report other seeds"
                )
            longest = max((self.run_name(name, seed) for seed in seeds), key=len)
            if len(longest) > _LONGEST_NAME:
                raise ValueError(f"the run {longest!r} has {len(longest)} characters, at most {_LONGEST_NAME} can be")
        return self

    def _check_preparation(self, name: str) -> None:
        other = self.arms[name].prepared_by
        if other is None:
            return
        if other not in self.arms or self.arms[other].prepared_by is not None:
            known = ", ".join(each for each in self.arms if self.arms[each].prepared_by is None)
            raise ValueError(f"arm {name}: prepared_by {other!r} is no arm that prepares for itself: {known}")
        if missing := sorted({*self.seeds_of(name)} - {*self.seeds_of(other)}):
            raise ValueError(f"arm {name}: {other}, which prepares for it, has no seed {missing[0]}")


def load_study(path: str | Path, *, read_by: tuple[Path, ...] = ()) -> Study:
    """Read a study file; its paths are then from the working directory. `read_by`: files whose `arms_from` lead here.

    Raises BadInput naming file, key, what was found and what was expected.
    """
    path = experiment_file(path)
    if path.resolve() in read_by:
        raise BadInput(f"{path}: arms_from leads back to this file", next_step="name a study with arms of its own")
    try:
        study = _with_points(Study.model_validate(_with_arms(path, read_yaml(path), read_by)))
    except ValidationError as error:
        raise BadInput(
            f"{path} is not a valid study:\n" + "\n".join(listed_errors(error, _told)),
            next_step="correct the keys named above; every field is described in docs/study_file.md",
        ) from None
    warm_starts = [path.parent / each for each in study.warm_starts]
    return study.model_copy(update={"base": path.parent / study.base, "warm_starts": warm_starts})


def _with_arms(path: Path, data: dict[str, Any], read_by: tuple[Path, ...]) -> dict[str, Any]:
    """What a study file says, with the arms of the file that it names."""
    other, own = data.get("arms_from"), data.get("arms", {})
    if not isinstance(other, str) or not isinstance(own, dict):
        return data
    study = load_study(path.parent / other, read_by=(*read_by, path.resolve()))
    return {**data, "arms": {**_arms_of(study), **own}}


def _with_points(study: Study) -> Study:
    """The study with an arm for every point of its scales; checked again, because names and titles are new."""
    points = {}
    for name, scale in study.scales.items():
        for arm in scale.arms:
            for value, changes in scale.values.items():
                if changes:
                    references = [
                        study.point_of(name, each, value) if each in scale.arms else each
                        for each in study.references_of(arm)
                        if each in scale.arms or _same_tasks(changes)
                    ]
                    prepared_by = study.arms[arm].prepared_by
                    if prepared_by in scale.arms:
                        prepared_by = study.point_of(name, prepared_by, value)
                    points[study.point_of(name, arm, value)] = {
                        **study.arms[arm].model_dump(),
                        "title": f"{study.title_of(arm)}, {scale.title} {value:.12g}",
                        "switch": scale.title,
                        "set": {**study.arms[arm].set, **changes},
                        "seeds": scale.seeds or study.arms[arm].seeds,
                        "prepared_by": prepared_by,
                        "compare_with": [*references, arm] if _same_tasks(changes) else references,
                    }
    return Study.model_validate({**study.model_dump(), "arms": {**_arms_of(study), **points}})


def _same_tasks(changes: Mapping[str, Any]) -> bool:
    """Whether a value leaves the tasks as they are, so that it can be compared with arms that do not have it."""
    return not any(key.startswith("method.families") and not key.endswith(".groups") for key in changes)


def _arms_of(study: Study) -> dict[str, Any]:
    return {name: arm.model_dump() for name, arm in study.arms.items()}


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _told(item: Any) -> str:
    """The error in words; those of an arm are looked up among an arm's fields."""
    location = item["loc"]
    if len(location) > 2 and location[0] == "arms" and location[2] != "[key]":
        return f"  arms.{location[1]}.{readable({**item, 'loc': location[2:]}, Arm).lstrip()}"
    return readable(item, Study)
