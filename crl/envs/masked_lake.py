"""Masked FrozenLake in the words of realms: what the laboratory's miniature can read, with its rules not given.

The maps are FrozenLake's own (`crl/envs/frozenlake.py`): a start, a goal and holes. A player sees symbols with their
cells and is not told what they mean. One symbol marks the goal and another one every hole; which ones, the world's
seed decides for each lake, so what an episode finds out about a symbol holds for all later ones of that lake.

The same maps are on every lake, and the same ones are held out: what differs is the meaning of the symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs import frozenlake
from crl.envs.frozenlake import ACTIONS, Cell, FrozenLakeConfig, FrozenLakeEnvironment
from crl.envs.levels import FewestMoves, check_winnable
from crl.envs.realms import DEADLY, EMPTY, FEEDBACK, GOAL, WALL, claimed, symbol_at, symbol_names
from crl.protocols import Start, Step


class MaskedLakeConfig(EnvironmentConfig):
    """FrozenLake in the style of realms: each lake hides which symbol is the goal and which one a hole."""

    model_config = ConfigDict(title="Masked lake")

    kind: Literal["masked_lake"] = "masked_lake"
    lake: int = Field(0, ge=0, le=63, description="Which lake; its name r<number> appears in the goal.")
    world: int = Field(0, ge=0, lt=2**32, description="Seed of the hidden rules.")
    side: int = Field(4, ge=3, le=8, description="Side of the map.")
    symbols: int = Field(8, ge=2, le=26, description="Symbols in all: A, B, C, …; a lake has two of them.")
    frozen_probability: float = Field(0.7, ge=0.05, le=1.0, description="Probability that a cell is safe.")
    max_turns: int = Field(8, ge=1, le=1000, description="Turns after which an episode is lost.")
    held_out_from: HeldOutFrom = 1_000_000
    held_out_moves: FewestMoves = 3

    @model_validator(mode="after")
    def _winnable(self) -> MaskedLakeConfig:
        check_winnable(self.held_out_from, self.held_out_moves, self.max_turns)
        return self

    @property
    def hidden_rule(self) -> bool:
        """What the symbols mean."""
        return True

    @property
    def meaning(self) -> tuple[str, str]:
        """The symbol of the goal and that of the holes."""
        letters = symbol_names(self.symbols)
        drawn = np.random.default_rng(np.random.SeedSequence([self.world, self.lake])).permutation(len(letters))
        return letters[int(drawn[0])], letters[int(drawn[1])]

    def make(self) -> MaskedLakeEnvironment:
        """A wave of episodes of the lake."""
        return MaskedLakeEnvironment(self)


class MaskedLakeEnvironment(FrozenLakeEnvironment):
    """A wave of episodes of one lake (protocols `Environment`, `KnowsTruth`, `Leveled`, `Explains`, `Graded`).

    Reward is 1 on the goal, else 0. A hole ends the episode as a failure, `max_turns` at the turn limit. A move into
    the border is legal and moves nothing.
    """

    def __init__(self, config: MaskedLakeConfig) -> None:
        super().__init__(
            FrozenLakeConfig(
                size_min=config.side, size_max=config.side, frozen_probability=config.frozen_probability, masked=True,
                max_turns=config.max_turns, held_out_from=config.held_out_from, held_out_moves=config.held_out_moves,
            )
        )  # fmt: skip
        self._name, self._side = f"r{config.lake}", config.side
        self._goal_symbol, self._hole_symbol = config.meaning
        self._words = {
            frozenlake.BORDER: WALL,
            frozenlake.SAFE: EMPTY,
            frozenlake.GOAL: f"{self._goal_symbol} {GOAL}",
            frozenlake.HOLE: f"{self._hole_symbol} {DEADLY}",
        }

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i."""
        super().reset_many(seeds)
        return [Start(self._name, self._map(slot), tuple(ACTIONS)) for slot in range(len(seeds))]

    def _map(self, slot: int) -> str:
        """Every symbol with its cell, in the order of cells, and where the agent stands: as realms write it."""
        lake = self.lake(slot)
        symbols = {self._number(cell): self._hole_symbol for cell in lake.holes}
        symbols[self._number(lake.goal)] = self._goal_symbol
        listed = [symbol_at(symbol, cell) for cell, symbol in sorted(symbols.items())]
        return " ".join([*listed, f"at {self._place(slot)}"])

    def _number(self, cell: Cell) -> int:
        return cell[0] * self._side + cell[1]

    def _place(self, slot: int) -> str:
        return f"p{self._number(self.cell(slot))}"

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given. Stepping a slot that is done raises RuntimeError."""
        return {
            slot: replace(step, observation=self._place(slot), feedback="" if step.legal else FEEDBACK)
            for slot, step in super().step_many(actions).items()
        }

    def truth(self, text: str) -> float | None:
        """How much of a text's claim about this lake is right: 1 where it sends to the goal first, 0.5 where it does
        so after a symbol that is not there, 0 else; None: no claim.

        A metric for people. Nothing that is trained may see it.
        """
        claim = claimed(text)
        if claim is None:
            return None
        if claim[0] == self._goal_symbol:
            return 1.0
        return 0.5 if claim[1] == self._goal_symbol and claim[0] != self._hole_symbol else 0.0

    def why(self, slot: int) -> str | None:
        """What the last move met, by the hidden rule: for models of the environment, never for players."""
        met = self.met(slot)
        return None if met is None else self._words[met]
