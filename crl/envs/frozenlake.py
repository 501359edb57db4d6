"""FrozenLake without slipping: cross a grid to the goal and step on no hole. Native, deterministic, solvable by seed.

Each seed draws its own map: side, agent, goal, and each other cell safe with `frozen_probability`, until the goal can
be reached within the turn limit and the map is on the seed's side of what is held out (`crl/envs/levels.py`; side,
start, goal and holes are its content). Plain, the symbols are gymnasium's and the rules are told; masked (the variant
of the Experiential RL paper), symbols are abstract and only the names of the actions are told: what the symbols mean
has to be learned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from crl.config.base import unset
from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.levels import FewestMoves, Levels, check_winnable
from crl.envs.slots import Slots, refusal, stepped, with_ending
from crl.protocols import Start, Step, StopReason

ACTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""The four moves with their offset (row, column)."""

BORDER, GOAL, HOLE, SAFE = "border", "goal", "hole", "safe"
"""What a move may meet; at the border it moves nothing."""

_PLAIN = {"agent": "@", "goal": "G", "hole": "H", "safe": "F"}
_MASKED = {"agent": "A", "goal": "B", "hole": "C", "safe": "D"}
_PLAIN_GOAL = (
    "Walk from @ to the goal G over frozen cells F. Stepping on a hole H ends the game. Actions: up, down, left, right."
)
_MASKED_GOAL = "Actions: up, down, left, right."
_PATIENCE = 1000
"""Draws of a seed after which hardly a cell seems to be frozen: from there on the goal is beside the start."""
_DRAWS = 20_000

Cell = tuple[int, int]
"""(row, column)."""


class FrozenLakeConfig(EnvironmentConfig):
    """FrozenLake without slipping; every map can be solved. `masked` hides symbols and rules."""

    model_config = ConfigDict(title="FrozenLake")

    kind: Literal["frozenlake"] = "frozenlake"
    size_min: int = Field(4, ge=2, le=16, description="Smallest side.")
    size_max: int = Field(4, ge=2, le=16, description="Largest side.")
    frozen_probability: float = Field(0.8, ge=0.05, le=1.0, description="Probability that a cell is safe.")
    frozen_probability_max: float | None = Field(
        None,
        ge=0.05,
        le=1.0,
        exclude_if=unset,
        description="Each map draws its own probability up to this; null: the same for all.",
    )
    masked: bool = Field(False, description="Abstract symbols, no rules: only action names are given.")
    max_turns: int = Field(8, ge=1, le=1000, description="Turns after which an episode is lost.")
    held_out_from: HeldOutFrom = 1_000_000
    held_out_moves: FewestMoves = 3

    @model_validator(mode="after")
    def _sizes(self) -> FrozenLakeConfig:
        if self.size_min > self.size_max:
            raise ValueError(f"size_min {self.size_min} is larger than size_max {self.size_max}")
        if self.frozen_probability > (self.frozen_probability_max or 1.0):
            raise ValueError(
                f"frozen_probability {self.frozen_probability} is larger than frozen_probability_max "
                f"{self.frozen_probability_max}"
            )
        check_winnable(self.held_out_from, self.held_out_moves, self.max_turns)
        return self

    def make(self) -> FrozenLakeEnvironment:
        """A wave of FrozenLake episodes."""
        return FrozenLakeEnvironment(self)


@dataclass(frozen=True)
class Lake:
    """A map: side in cells, start, goal and holes."""

    side: int
    start: Cell
    goal: Cell
    holes: frozenset[Cell]

    @property
    def content(self) -> str:
        """The map in the symbols of the plain variant."""
        return lake_text(self, self.start, _PLAIN)

    @property
    def moves(self) -> int | None:
        """Moves of the shortest safe way; None without any."""
        path = self.path(self.start)
        return None if path is None else len(path)

    def moved(self, cell: Cell, action: str) -> Cell:
        """Where an action leads; the border holds the agent back."""
        row, column = cell[0] + ACTIONS[action][0], cell[1] + ACTIONS[action][1]
        inside = 0 <= row < self.side and 0 <= column < self.side
        return (row, column) if inside else cell

    def path(self, start: Cell) -> list[str] | None:
        """Actions of a shortest safe path to the goal, ties in the order of :data:`ACTIONS`; None without any."""
        came: dict[Cell, tuple[Cell, str] | None] = {start: None}
        queue = deque([start])
        while queue and self.goal not in came:
            cell = queue.popleft()
            for action in ACTIONS:
                target = self.moved(cell, action)
                if target not in came and target not in self.holes:
                    came[target] = (cell, action)
                    queue.append(target)
        if self.goal not in came:
            return None
        actions: list[str] = []
        step = came[self.goal]
        while step is not None:
            actions.append(step[1])
            step = came[step[0]]
        return actions[::-1]


def lake_text(lake: Lake, agent: Cell, symbols: Mapping[str, str]) -> str:
    """A map with the agent on some cell, a symbol a cell."""
    rows = []
    for row in range(lake.side):
        cells = []
        for column in range(lake.side):
            cell = (row, column)
            kind = "hole" if cell in lake.holes else "goal" if cell == lake.goal else "safe"
            cells.append(symbols["agent" if cell == agent else kind])
        rows.append(" ".join(cells))
    return "\n".join(rows)


def lakes(config: FrozenLakeConfig) -> Levels[Lake]:
    """The map of every seed: solved in at most `max_turns` moves, held out or not as the seed says."""
    return Levels(
        lambda seed: _draws(config, seed),
        held_out_from=config.held_out_from,
        fewest_moves=config.held_out_moves,
        draws=_DRAWS,
        where=f"environment frozenlake, sides {config.size_min} to {config.size_max}, frozen_probability "
        f"{config.frozen_probability:g}, max_turns {config.max_turns}",
    )


def _draws(config: FrozenLakeConfig, seed: int) -> Iterator[Lake | None]:
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    for attempt in count():
        side = int(generator.integers(config.size_min, config.size_max + 1))
        first, second = (int(value) for value in generator.choice(side * side, size=2, replace=False))
        start, goal = divmod(first, side), divmod(second, side)
        if attempt >= _PATIENCE:
            goal = (start[0], start[1] - 1 if start[1] else 1)
        safe = config.frozen_probability
        if config.frozen_probability_max is not None:
            safe = float(generator.uniform(safe, config.frozen_probability_max))
        holed_RC = generator.random((side, side)) >= safe
        holes = frozenset((int(r), int(c)) for r, c in np.argwhere(holed_RC)) - {start, goal}
        lake = Lake(side, start, goal, holes)
        moves = lake.moves
        yield lake if moves is not None and moves <= config.max_turns else None


@dataclass
class _Slot:
    lake: Lake
    cell: Cell
    turns: int = 0
    done: bool = False
    met: str | None = None
    why: str | None = None


def _met(slot: _Slot, before: Cell) -> str:
    if slot.cell == before:
        return BORDER
    return GOAL if slot.cell == slot.lake.goal else HOLE if slot.cell in slot.lake.holes else SAFE


class FrozenLakeEnvironment(Slots[_Slot]):
    """A wave of FrozenLake episodes (protocol `Environment`). Reward is 1 on the goal, else 0.

    A hole ends the episode as a failure, `max_turns` at the turn limit. An illegal action spends a turn.
    """

    def __init__(self, config: FrozenLakeConfig) -> None:
        super().__init__()
        self.config = config
        self._symbols = _MASKED if config.masked else _PLAIN
        self._goal = _MASKED_GOAL if config.masked else _PLAIN_GOAL
        self._lakes = lakes(config)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i."""
        self._slots = [_Slot(lake, lake.start) for lake in map(self._lakes.of, seeds)]
        return [Start(self._goal, self._text(slot), tuple(ACTIONS)) for slot in self._slots]

    def _text(self, slot: _Slot) -> str:
        return lake_text(slot.lake, slot.cell, self._symbols)

    def _step(self, slot: _Slot, action: str | None) -> Step:
        before, legal = slot.cell, action in ACTIONS
        if action is not None and legal:
            slot.cell = slot.lake.moved(slot.cell, action)
        reason = None
        if slot.cell == slot.lake.goal:
            reason = StopReason.success
        elif slot.cell in slot.lake.holes:
            reason = StopReason.failure
        elif slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        slot.met = _met(slot, before) if legal else None
        slot.why = self._told(slot, before, action, reason) if action is not None and legal else None
        feedback = "" if legal else refusal(ACTIONS)
        return stepped(slot, reason, with_ending(self._text(slot), reason), tuple(ACTIONS), feedback, legal=legal)

    def _told(self, slot: _Slot, before: Cell, action: str, reason: StopReason | None) -> str:
        agent = self._symbols["agent"]
        came = f"{agent} is in row {before[0] + 1}, column {before[1] + 1} and goes {action}"
        if slot.met not in self._symbols:  # the border
            return f"{came}. The border is there, so {agent} stays."
        what = {GOAL: "the goal", HOLE: "a hole", SAFE: "a safe cell"}[slot.met]
        row, column = slot.cell
        told = f"{came} to row {row + 1}, column {column + 1}, which is {self._symbols[slot.met]}, {what}."
        return f"{told} No turn is left." if reason is StopReason.turn_limit else told

    def why(self, slot: int) -> str | None:
        """Where the last move led and what is there (protocol `Explains`): of the masked variant too."""
        return self._slots[slot].why

    def difficulty(self, slot: int) -> float:
        """Moves of the shortest safe way from the start, as a share of the turn limit (protocol `Graded`)."""
        return (self._slots[slot].lake.moves or 0) / self.config.max_turns

    def oracle(self, slot: int) -> str | None:
        """First action of a shortest safe path; None when the episode is done."""
        state = self._slots[slot]
        path = None if state.done else state.lake.path(state.cell)
        return path[0] if path else None

    def content(self, slot: int) -> str:
        """The map of a slot in plain symbols."""
        return self._slots[slot].lake.content

    def met(self, slot: int) -> str | None:
        """What the last move of a slot met: one of BORDER, GOAL, HOLE, SAFE; None before a move, and after none."""
        return self._slots[slot].met

    def lake(self, slot: int) -> Lake:
        """The map of a slot."""
        return self._slots[slot].lake

    def cell(self, slot: int) -> Cell:
        """Where the agent of a slot stands."""
        return self._slots[slot].cell
