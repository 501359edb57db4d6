"""A study file: arms, seeds, and what is compared with what. Reading it, and errors a person can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from crl.config.base import Model
from crl.config.load import listed_errors, read_yaml, readable
from crl.errors import BadInput

Seed = Annotated[int, Field(ge=0, lt=2**32)]
ArmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
_LONGEST_NAME = 63
"""Characters an experiment's name may have."""
_OVERRIDES = ("method.", "runtime.")


class Arm(Model):
    """One arm: what it changes of the base experiment."""

    title: str | None = Field(None, min_length=1, max_length=80, description="What tables call it; default its name.")
    switch: str | None = Field(
        None, min_length=1, max_length=80, description="The mechanism it switches, where the study measures mechanisms."
    )
    set: dict[str, Any] = Field({}, description="Dotted keys of the base experiment and their values here.")
    seeds: list[Seed] | None = Field(None, min_length=1, description="Its own seeds; default those of the study.")
    rounds: int | None = Field(None, ge=1, le=100_000, description="Its own rounds; default those of the study.")
    compare_with: str | list[str] | None = Field(
        None, description="The arms its differences are against; default those of the study, an empty list: none."
    )

    @model_validator(mode="after")
    def _sets_what_an_experiment_has(self) -> Arm:
        for key in self.set:
            if not key.startswith(_OVERRIDES):
                raise ValueError(f"set: {key!r} is no key of an experiment; expected one that starts with 'method.'")
        return self


class Study(Model):
    """A question, the arms that answer it, and the seeds they are reported on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$", description="Its directory has this name, too.")
    question: str = Field("", max_length=2000, description="What it asks, in a sentence.")
    base: Path = Field(description="The experiment file that every arm changes, relative to the study file.")
    warm_starts: list[Path] = Field([], description="Warm-start files, relative to the study file; made first.")
    rounds: int = Field(ge=1, le=100_000, description="Rounds of every run.")
    seeds: list[Seed] = Field(min_length=1, description="Seeds that are reported.")
    tuned_on: list[Seed] = Field([], description="Seeds that settings were chosen on: none of them is reported.")
    seed_keys: list[str] = Field(
        ["method.seed"], min_length=1, description="Every key that takes the seed; `*` stands for each item of a list."
    )
    compare_with: str | list[str] = Field([], description="The arm, or arms, that paired differences are against.")
    level: float = Field(0.5, gt=0, le=1, description="Success level of `rounds to` and `episodes to`.")
    last: int = Field(1, ge=1, le=1000, description="Last evaluations that final success is the mean of.")
    arms: dict[ArmName, Arm] = Field(min_length=1, description="The arms by name.")

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

    def run_name(self, arm: str, seed: int) -> str:
        """Name of the run of an arm and a seed."""
        return f"{self.name}-{arm}-s{seed}"

    @model_validator(mode="after")
    def _holds_together(self) -> Study:
        for references in (self.compare_with, *(arm.compare_with or [] for arm in self.arms.values())):
            for reference in _listed(references):
                if reference not in self.arms:
                    raise ValueError(f"compare_with {reference!r} is no arm; arms: {', '.join(self.arms)}")
        for name in self.arms:
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


def load_study(path: str | Path) -> Study:
    """Read a study file; its paths are then from the working directory.

    Raises BadInput naming file, key, what was found and what was expected.
    """
    path = Path(path)
    try:
        study = Study.model_validate(read_yaml(path))
    except ValidationError as error:
        raise BadInput(
            f"{path} is not a valid study:\n" + "\n".join(listed_errors(error, _told)),
            next_step="correct the keys named above; every field is described in crl/lab/study/config.py",
        ) from None
    warm_starts = [path.parent / each for each in study.warm_starts]
    return study.model_copy(update={"base": path.parent / study.base, "warm_starts": warm_starts})


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _told(item: Any) -> str:
    """The error in words; those of an arm are looked up among an arm's fields."""
    location = item["loc"]
    if len(location) > 2 and location[0] == "arms" and location[2] != "[key]":
        return f"  arms.{location[1]}.{readable({**item, 'loc': location[2:]}, Arm).lstrip()}"
    return readable(item, Study)
