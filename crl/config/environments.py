"""Environments, and the task families that play in them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.base import Model, SeedRange

HeldOutFrom = Annotated[
    int | None,
    Field(
        ge=1,
        description="Seeds from here on draw held-out levels: levels that no smaller seed ever draws. null: levels are "
        "not kept apart, for a task that has too few of them.",
    ),
]
FewestMoves = Annotated[
    int, Field(ge=1, le=64, description="Fewest moves that the shortest way of a held-out level takes.")
]


class MiniHackConfig(Model):
    """A registered MiniHack task."""

    model_config = ConfigDict(title="MiniHack")

    kind: Literal["minihack"] = "minihack"
    id: str = Field("MiniHack-Room-Ultimate-5x5-v0", description="Registered MiniHack id.")
    max_turns: int = Field(10, ge=1, le=1000, description="Turns before an episode counts as failed.")
    hints: bool = Field(
        True,
        description="Say where the stairs and other things lie (`> is 2 east`); false: a legend of the symbols, and "
        "prompts of its own: the examples of `prompts: minihack` show hints.",
    )
    held_out_from: HeldOutFrom = 1_000_000
    held_out_moves: FewestMoves = 3

    @model_validator(mode="after")
    def _moves(self) -> MiniHackConfig:
        _check_winnable(self)
        return self


class FrozenLakeConfig(Model):
    """FrozenLake, deterministic, a solvable map for each seed; `masked` replaces symbols and gives no rules."""

    model_config = ConfigDict(title="FrozenLake")

    kind: Literal["frozenlake"] = "frozenlake"
    size_min: int = Field(4, ge=2, le=16, description="Smallest side of the map.")
    size_max: int = Field(4, ge=2, le=16, description="Largest side of the map.")
    frozen_probability: float = Field(0.8, ge=0.05, le=1.0, description="Probability that a cell is safe.")
    masked: bool = Field(False, description="Abstract symbols and no rules: only action names are told.")
    max_turns: int = Field(8, ge=1, le=1000, description="Turns before an episode counts as failed.")
    held_out_from: HeldOutFrom = 1_000_000
    held_out_moves: FewestMoves = 3

    @model_validator(mode="after")
    def _sizes(self) -> FrozenLakeConfig:
        if self.size_min > self.size_max:
            raise ValueError(f"size_min {self.size_min} is larger than size_max {self.size_max}")
        _check_winnable(self)
        return self


class RealmsConfig(Model):
    """Key then goal: a grid with abstract symbols; each realm hides which one is the key and which the goal."""

    model_config = ConfigDict(title="Realms")

    kind: Literal["realms"] = "realms"
    realm: int = Field(0, ge=0, le=15, description="Number of the realm; its name r<number> stands in the goal.")
    world: int = Field(
        0, ge=0, lt=2**32, description="Seed of the hidden rules: the key and goal symbol of each realm."
    )
    side: int = Field(4, ge=3, le=8, description="Side of the grid.")
    symbols: int = Field(8, ge=4, le=26, description="Symbols there are: A, B, C, …")
    objects: int = Field(4, ge=2, le=12, description="Symbols on a grid: key, goal, and deadly decoys.")
    longest_path: int = Field(6, ge=2, le=64, description="Most moves that the shortest way takes.")
    max_turns: int = Field(10, ge=2, le=1000, description="Turns before an episode counts as failed.")
    practice: bool = Field(
        False, description="Every seed draws a realm and a rule of its own, one that no world has: for a warm start."
    )
    held_out_from: int = Field(
        1_000_000, ge=1, description="Seeds from here on draw layouts that no smaller seed ever draws."
    )
    held_out_moves: FewestMoves = 3

    @model_validator(mode="after")
    def _fits(self) -> RealmsConfig:
        if self.objects > self.symbols:
            raise ValueError(f"{self.objects} objects need as many symbols, found {self.symbols}")
        if self.objects + 1 > self.side**2 // 2:
            raise ValueError(f"{self.objects} objects leave no way on a grid of side {self.side}")
        if self.longest_path > self.max_turns:
            raise ValueError(f"longest_path {self.longest_path} is more than max_turns {self.max_turns}")
        if self.held_out_moves > self.longest_path:
            raise ValueError(f"held_out_moves {self.held_out_moves} is more than longest_path {self.longest_path}")
        return self


class ShrinesConfig(Model):
    """Offer the right things in the right order; each shrine hides its rule. In plain words, for a language model."""

    model_config = ConfigDict(title="Shrines")

    kind: Literal["shrines"] = "shrines"
    shrine: int = Field(0, ge=0, le=15, description="Number of the shrine; its name, a colour, stands in the goal.")
    world: int = Field(0, ge=0, lt=2**32, description="Seed of the hidden rules.")
    steps: int = Field(3, ge=1, le=5, description="Things to offer, in order.")
    shown: int = Field(4, ge=2, le=12, description="Things that lie there: those of the rule, and others.")
    things: int = Field(16, ge=4, le=24, description="Things there are in all.")
    max_turns: int = Field(6, ge=1, le=1000, description="Turns before an episode counts as failed.")
    practice: bool = Field(
        False, description="Every seed draws a shrine and a rule of its own, which no world has: for a warm start."
    )
    held_out_from: int = Field(
        1_000_000, ge=1, description="Seeds from here on draw sets of things that no smaller seed ever draws."
    )

    @model_validator(mode="after")
    def _fits(self) -> ShrinesConfig:
        if not self.steps <= self.shown <= self.things:
            raise ValueError(f"{self.steps} steps, {self.shown} shown and {self.things} things: they must not decrease")
        if self.max_turns < self.steps:
            raise ValueError(f"max_turns {self.max_turns} is less than the {self.steps} steps that winning takes")
        return self


def _check_winnable(config: MiniHackConfig | FrozenLakeConfig) -> None:
    """Raise ValueError where no held-out level could be won in its turns."""
    if config.held_out_from is not None and config.held_out_moves > config.max_turns:
        raise ValueError(f"held_out_moves {config.held_out_moves} is more than max_turns {config.max_turns}")


EnvironmentConfig = Annotated[
    MiniHackConfig | FrozenLakeConfig | RealmsConfig | ShrinesConfig, Field(discriminator="kind")
]


class FamilyConfig(Model):
    """One task family: its environment, its share of a round, its seeds."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,30}$", description="Name of the task family (lower case).")
    environment: EnvironmentConfig = Field(description="The environment its episodes are played in.")
    groups: int = Field(4, ge=1, le=4096, description="Groups per round.")
    train_seeds: SeedRange = Field(SeedRange(start=0, count=100_000), description="Seeds training may draw from.")
    evaluation_seeds: SeedRange = Field(
        SeedRange(start=1_000_000, count=16), description="Held-out seeds, played at every evaluation."
    )

    @model_validator(mode="after")
    def _disjoint(self) -> FamilyConfig:
        if self.train_seeds.overlaps(self.evaluation_seeds):
            raise ValueError(f"family {self.name}: train_seeds and evaluation_seeds overlap; they must share no seed")
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
