"""The base of every environment's config, and the task families that play in them.

An environment's own settings are a subclass beside the environment. It is found by its `kind`: those of `crl/envs`, the
entry points of the group `crl.environments`, or `module:Class`. What one family of a mixture may have of its own
(sampling, a reward convention, a place in the bank) is left out of a dump where it is not set: experiments that compute
the same have the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from crl.config.base import COLDEST, LAST_SEED, LONGEST_SECONDS, MOST_ROUNDS, Model, PromptConfig, SeedRange, off, unset
from crl.config.registry import Registry
from crl.config.roles import SamplingChange
from crl.records import OutsideRows


class FamilySampling(SamplingChange):
    """Changes to the actor's sampling in this family."""

    temperature: float | None = Field(None, ge=COLDEST, le=5, exclude_if=unset, description="Divides the logits.")


_Worth = Annotated[float | None, Field(ge=-1000, le=1000, exclude_if=unset)]


class FamilyReward(Model):
    """What an episode of the family is worth in training. Evaluation uses the environment's own reward."""

    success: _Worth = Field(
        None, description="Reward of a won episode; null: scale times the environment's, plus shift."
    )
    failure: _Worth = Field(
        None, description="Reward of a lost episode; null: scale times the environment's, plus shift."
    )
    scale: float = Field(1.0, gt=0, le=1000, description="Multiplies the reward of the environment or judge.")
    shift: float = Field(0.0, ge=-1000, le=1000, description="Added to it.")
    judge: str | None = Field(
        None,
        min_length=1,
        max_length=100_000,
        exclude_if=unset,
        description="Rubric for the role `judge`, which then gives the reward, from 0 to 1. In a file: the name "
        "of a text file (.md, .txt) beside it. null: the environment's reward.",
    )
    mode: Literal["absolute", "group"] = Field(
        "absolute",
        exclude_if=lambda value: value == "absolute",
        description="absolute: the judge reads one episode at a time; group: a whole group at once. Evaluations, "
        "trials and probes are always absolute.",
    )
    success_at: float = Field(
        0.5,
        gt=0,
        le=1,
        exclude_if=lambda value: value == 0.5,
        description="Least reward by the judge that counts as solved.",
    )
    twice: float = Field(
        0.1,
        ge=0,
        le=1,
        exclude_if=lambda value: value == 0.1,
        description="Share of groups that the judge reads again in reverse order, to measure how far it agrees "
        "with itself.",
    )

    @model_validator(mode="after")
    def _winning_pays(self) -> FamilyReward:
        if self.success is not None and self.failure is not None and self.success <= self.failure:
            raise ValueError(f"success is worth {self.success:g}, failure {self.failure:g}: success must be worth more")
        own = sorted({"mode", "success_at", "twice"} & self.model_fields_set)
        if own and self.judge is None:
            raise ValueError(f"{own[0]} is about a judge, and there is none: set judge, the file of its rubric")
        return self

    def of(self, reward: float, *, success: bool) -> float:
        """What an episode is worth that its environment gave `reward`."""
        declared = self.success if success else self.failure
        return self.scale * reward + self.shift if declared is None else declared


class FamilyBank(Model):
    """The family's part of the bank."""

    partition: Literal["shared", "family"] | None = Field(
        None,
        exclude_if=unset,
        description="What retrieval searches. family: the family's entries; shared: those of all families that "
        "share; null: shared if `retrieval.scope` is bank, else family.",
    )
    capacity: int | None = Field(
        None, ge=1, le=10_000_000, exclude_if=unset, description="Most entries; null: bank.capacity."
    )


class FamilyChange(Model):
    """A task that changes during a run, so that earlier experiences may no longer fit."""

    round: int = Field(
        ge=1, le=MOST_ROUNDS, description="First round with the new settings, in training and evaluation."
    )
    environment: dict[str, Any] = Field(
        min_length=1, description="The environment's keys that change, with new values."
    )


HeldOutFrom = Annotated[
    int | None,
    Field(
        ge=1,
        le=LAST_SEED,
        description="From this seed on, levels are held out: no smaller seed draws them. null: held out by seed "
        "alone, for a task with too few levels.",
    ),
]


DataFiles = Path | Sequence[Path]
"""A file, a folder with all that is in it, or several files."""


class EnvironmentConfig(Model):
    """What the config of every environment has. Subclass it with a default for `kind`, own fields and :meth:`make`."""

    PACKAGES: ClassVar[tuple[str, ...]] = ()
    """Packages of others that it plays with: the record keeps their versions."""
    PATHS: ClassVar[tuple[str, ...]] = ()
    """Settings that say where its data is. A run keeps a digest of the data; then it may be moved."""

    kind: str = Field(description="Name of the environment, or module:Class.")
    held_out_from: HeldOutFrom = None

    @classmethod
    def check_installed(cls) -> None:
        """Raise BadInput where a package that it needs cannot be imported, whatever its settings will be."""

    @property
    def hidden_rule(self) -> bool:
        """Whether there is a rule that players are to find out and the oracle knows: its demonstrations would tell."""
        return False

    @property
    def teaches(self) -> bool:
        """Whether its environment has practice games (`crl.protocols.Teacher`)."""
        return False

    @property
    def global_streams(self) -> bool:
        """Whether its episodes draw from the process's own random generators, which one of them has at a time."""
        return False

    @property
    def keeps_steps(self) -> bool:
        """Whether what it answered in episodes that are over is kept, so that a stage that is resumed does not call for
        it again: for one that acts on a world outside, or takes long."""
        return False

    @property
    def runs_programs(self) -> bool:
        """Whether its episodes are programs that run themselves (`crl.protocols.RunsPrograms`): nobody steps it."""
        return False

    @property
    def proves(self) -> bool:
        """Whether the environment can try a reference solution of each task (`crl.protocols.Proves`)."""
        return False

    @property
    def rewards_nothing(self) -> bool:
        """Whether it cannot say what an episode is worth, so that a judge must."""
        return False

    @property
    def ends_with_reward(self) -> bool:
        """Whether its last observation says nothing but the reward, which a judge is not to read."""
        return False

    @property
    def checked_turns(self) -> int:
        """Turns of episodes of one seed that are compared before work starts: for one whose code is anybody's, and
        whose steps may be taken for nothing."""
        return 0

    @property
    def held_out_levels(self) -> int | None:
        """How many consecutive seeds from `held_out_from` on draw levels that differ; None: as many as anybody asks.

        An environment with a fixed list of held-out tasks says how long it is: an evaluation plays none of them twice.
        """
        return None

    def data_files(self) -> Mapping[str, DataFiles]:
        """Files and folders of a person's that it plays with, by the settings that name them; a file that is not there
        may be among them. A run keeps a digest of each, and goes on with the same content only."""
        return {}

    def outside_rows(self) -> Iterable[OutsideRows]:
        """The rows of a person's files that it plays with: Great Expectations looks at them before work starts. None of
        what ships with the project. Raises BadInput as :meth:`make`."""
        return ()

    def make(self) -> Any:
        """A new environment (`crl.protocols.Environment`). Import here, not at the top of the file, what is heavy.

        Raises BadInput where these settings cannot be played on this machine.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how its environment is made")


ENVIRONMENTS = Registry(
    "environment",
    EnvironmentConfig,
    {
        "frozenlake": "crl.envs.frozenlake:FrozenLakeConfig",
        "masked_lake": "crl.envs.masked_lake:MaskedLakeConfig",
        "realms": "crl.envs.realms:RealmsConfig",
        "shrines": "crl.envs.shrines:ShrinesConfig",
        "sokoban": "crl.envs.sokoban:SokobanConfig",
    },
)
"""The environments that an experiment may name; guests and other packages add theirs in `crl.environments`."""


MOST_HELD_OUT = 100_000
"""Most held-out seeds of a family: each is an episode of every condition of every evaluation."""


def _few_enough(seeds: SeedRange) -> SeedRange:
    if seeds.count > MOST_HELD_OUT:
        raise ValueError(
            f"count is {seeds.count}, expected at most {MOST_HELD_OUT}: every evaluation plays all of them"
        )
    return seeds


class FamilyConfig(Model):
    """One task family: its environment, groups and seeds."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,30}$", description="Name, in lower case.")
    environment: Annotated[EnvironmentConfig, ENVIRONMENTS] = Field(description="The environment that it plays.")
    groups: int = Field(4, ge=1, le=4096, description="Groups per round.")
    train_seeds: SeedRange = Field(SeedRange(start=0, count=100_000), description="Seeds for training.")
    train_tasks: list[Annotated[int, Field(ge=0, le=LAST_SEED)]] | None = Field(
        None,
        min_length=1,
        max_length=100_000,
        exclude_if=unset,
        description="The training seeds to draw from; null: all. In a file: the name of a file by `crl env solvable`.",
    )
    evaluation_seeds: Annotated[SeedRange, AfterValidator(_few_enough)] = Field(
        SeedRange(start=1_000_000, count=16), description="Held-out seeds; every evaluation plays all of them."
    )
    # Both belong to the method. A step past its limit ends its episode, and how many steps share the processor says how
    # long each takes.
    workers: int = Field(
        1, ge=1, le=1024, description="Episodes that a slow environment steps side by side, in threads."
    )
    step_time_limit_seconds: float | None = Field(
        None,
        ge=0.001,
        le=LONGEST_SECONDS,
        description="A longer step ends the episode with an error; null: no limit.",
    )
    isolate: bool = Field(
        False,
        exclude_if=off,
        description="Run each environment in a process of its own: a crash, or a hang past the time limit, costs "
        "one episode only.",
    )

    group_size: int | None = Field(
        None, ge=2, le=1024, exclude_if=unset, description="K of this family; null: rollout.group_size."
    )
    max_turns: int | None = Field(
        None,
        ge=1,
        le=100_000,
        exclude_if=unset,
        description="Turn limit, for environments without one of their own; null: none.",
    )
    sampling: FamilySampling | None = Field(
        None,
        exclude_if=unset,
        description="Changes to the actor's sampling; null: none. Evaluation keeps them, except for the "
        "temperature and what evaluation.sampling sets.",
    )
    prompts: dict[str, PromptConfig] | None = Field(
        None,
        exclude_if=unset,
        description="Prompts that replace those of `method.prompts`, by name; in a file, names under conf/prompts/.",
    )
    reward: FamilyReward | None = Field(
        None, exclude_if=unset, description="Reward convention; null: the environment's rewards."
    )
    bank: FamilyBank | None = Field(
        None, exclude_if=unset, description="Its part of the bank; null: as `recipe.bank` and `recipe.retrieval` say."
    )
    data_digests: dict[str, str] | None = Field(
        None,
        exclude_if=unset,
        description="SHA-256 of the environment's data by setting (`data@3`: from round 3 on). crl fills it in; "
        "a run continues only with the same data.",
    )
    changes: list[FamilyChange] = Field(
        [],
        exclude_if=off,
        description="Changes to the environment at given rounds, in order.",
    )

    @property
    def drawn(self) -> Sequence[int]:
        """The seeds that training draws from."""
        first = self.train_seeds.start
        return range(first, first + self.train_seeds.count) if self.train_tasks is None else self.train_tasks

    @model_validator(mode="after")
    def _tasks_of_training(self) -> FamilyConfig:
        listed, seeds = self.train_tasks or [], self.train_seeds
        other = [seed for seed in listed if not seeds.start <= seed < seeds.start + seeds.count]
        if other or len(set(listed)) < len(listed):
            wrong = f"names {other[0]}, which is no train seed" if other else "names a seed twice"
            raise ValueError(f"family {self.name}: train_tasks {wrong}")
        return self

    def in_round(self, number: int) -> FamilyConfig:
        """The family as it is in a round: with the environment that its changes up to there leave."""
        due = [change for change in self.changes if change.round <= number]
        if not due:
            return self
        digests = self.data_digests and {
            key.partition("@")[0]: digest
            for key, digest in sorted(self.data_digests.items(), key=lambda item: int(item[0].partition("@")[2] or 0))
            if int(key.partition("@")[2] or 0) <= number
        }
        settings = self.environment.model_dump()
        for change in due:
            settings |= change.environment
        environment = type(self.environment).model_validate(settings)
        return self.model_copy(update={"environment": environment, "changes": [], "data_digests": digests})

    def identity(self, dumped: Mapping[str, Any]) -> dict[str, Any]:
        """A dumped family without the paths of data that it has digests of: what makes it this family."""
        if self.data_digests is None:
            return dict(dumped)
        changes = [
            {**change, "environment": self._without_paths(change["environment"])}
            for change in dumped.get("changes", ())
        ]
        found = {**dumped, "environment": self._without_paths(dumped["environment"])}
        return {**found, "changes": changes} if changes else found

    def _without_paths(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if key not in self.environment.PATHS}

    @property
    def worlds(self) -> dict[int, FamilyConfig]:
        """The family as it is from round 0 on, and from each round on in which it changes."""
        return {first: self.in_round(first) for first in (0, *(change.round for change in self.changes))}

    @property
    def held_out_seeds(self) -> int | None:
        """How many held-out seeds there are from `evaluation_seeds.start` on; None: as many as anybody asks."""
        levels, first = self.environment.held_out_levels, self.environment.held_out_from
        return None if levels is None or first is None else max(levels - (self.evaluation_seeds.start - first), 0)

    @property
    def fewest_held_out_seeds(self) -> int | None:
        """The least of these over the worlds of a family that changes."""
        return min((n for world in self.worlds.values() if (n := world.held_out_seeds) is not None), default=None)

    @model_validator(mode="after")
    def _one_turn_limit(self) -> FamilyConfig:
        own = getattr(self.environment, "max_turns", None)
        if self.max_turns is not None and own is not None:
            raise ValueError(
                f"family {self.name}: max_turns is {self.max_turns}, and environment {self.environment.kind} has a "
                f"limit of its own, {own}, which its levels are made for; set environment.max_turns"
            )
        return self

    @property
    def turn_limit(self) -> int | None:
        """Most turns of an episode; None where nobody says."""
        own = getattr(self.environment, "max_turns", None)
        return self.max_turns if own is None else int(own)

    @property
    def judged(self) -> bool:
        """Whether a judge gives the reward."""
        return self.reward is not None and self.reward.judge is not None

    @model_validator(mode="after")
    def _rewarded(self) -> FamilyConfig:
        if self.environment.rewards_nothing and not self.judged:
            raise ValueError(
                "nothing says what an episode is worth: set environment.reward, a function, or reward.judge, the "
                "file of a rubric"
            )
        return self

    @model_validator(mode="after")
    def _disjoint(self) -> FamilyConfig:
        if self.train_seeds.overlaps(self.evaluation_seeds):
            raise ValueError(f"family {self.name}: train_seeds and evaluation_seeds overlap; they must share no seed")
        return self

    @model_validator(mode="after")
    def _isolated(self) -> FamilyConfig:
        if self.isolate and self.environment.teaches:
            raise ValueError(f"family {self.name}: an environment with practice games cannot be isolated")
        beside = self.workers > 1 or self.step_time_limit_seconds is not None
        if self.environment.global_streams and beside and not self.isolate:
            raise ValueError(
                f"family {self.name}: its environment draws from the process's own random generators, for which slots "
                "wait for each other: workers above 1 and step_time_limit_seconds need isolate: true"
            )
        return self

    @model_validator(mode="after")
    def _not_stepped(self) -> FamilyConfig:
        stepped = {"workers": 1, "step_time_limit_seconds": None, "isolate": False, "max_turns": None}
        wrong = [name for name, default in stepped.items() if getattr(self, name) != default]
        if self.environment.runs_programs and wrong:
            raise ValueError(
                f"family {self.name}: {wrong[0]} is about environments that are stepped, and an episode of "
                f"{self.environment.kind} is a program that runs itself; its limits are environment.max_calls, "
                "max_tokens, seconds and call_seconds"
            )
        return self

    @model_validator(mode="after")
    def _changes(self) -> FamilyConfig:
        rounds = [change.round for change in self.changes]
        if rounds != sorted(set(rounds)):
            raise ValueError(f"family {self.name}: changes are in rounds {rounds}, expected each round once, in order")
        for change in self.changes:
            for key in ("kind", "held_out_from"):
                if key in change.environment:
                    raise ValueError(
                        f"family {self.name}: the change in round {change.round} sets {key}, which cannot change: "
                        "the same seeds are held out throughout"
                    )
            before, after = self.in_round(change.round - 1).environment, self.in_round(change.round).environment
            if before == after:
                raise ValueError(f"family {self.name}: the change in round {change.round} changes nothing")
        return self

    @model_validator(mode="after")
    def _held_out(self) -> FamilyConfig:
        """Seeds alone hold nothing out: two of them may draw one level."""
        first, train, evaluation = self.environment.held_out_from, self.train_seeds, self.evaluation_seeds
        if first is not None and train.start + train.count > first:
            raise ValueError(
                f"family {self.name}: train_seeds end with {train.start + train.count - 1}, found "
                f"environment.held_out_from {first}: seeds from there on draw held-out levels"
            )
        if first is not None and evaluation.start < first:
            raise ValueError(
                f"family {self.name}: evaluation_seeds begin with {evaluation.start}, found "
                f"environment.held_out_from {first}: smaller seeds draw the levels of training"
            )
        return self
