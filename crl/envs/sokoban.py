"""Sokoban: push every box onto a target. Native, deterministic, solvable by seed.

Each seed draws its own level (`crl/envs/sokoban_levels.py`), whose shortest solution has between `solution_min` and
`solution_max` moves: that is the difficulty. A box that is pushed into a corner can never leave it; the game goes on
all the same, unless `ends_when_stuck` says otherwise. Plain, the rules are told; masked (the variant of the
Experiential RL paper, which has one box, sides 6 to 8 and 8 moves), symbols are abstract and only the names of the
actions are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.levels import FewestMoves
from crl.envs.slots import Slots, refusal, stepped, with_ending
from crl.envs.sokoban_levels import ACTIONS, SokobanLevel, State, best_action, floor_range, sokoban_levels, solutions
from crl.protocols import Start, Step, StopReason

_PLAIN = {
    "wall": "W", "floor": ".", "target": "G", "box": "B", "box on target": "C", "agent": "A", "agent on target": "@",
}  # fmt: skip
_MASKED = {
    "wall": "D", "floor": "E", "target": "C", "box": "B", "box on target": "F", "agent": "A", "agent on target": "G",
}  # fmt: skip
_PLAIN_GOAL = (
    "Push every box onto a target. A is you, B a box, G a target, C a box on a target, @ you on a target, W a wall, "
    ". free floor. Walking into a box pushes it one cell if the cell behind it is free; boxes cannot be pulled. "
    "Actions: up, down, left, right."
)
_MASKED_GOAL = "Actions: up, down, left, right."
_STUCK = "The boxes can no longer all be brought to targets."


class SokobanConfig(EnvironmentConfig):
    """Sokoban, a solvable level for each seed; `masked` replaces symbols and gives no rules."""

    model_config = ConfigDict(title="Sokoban")

    kind: Literal["sokoban"] = "sokoban"
    size_min: int = Field(6, ge=5, le=12, description="Smallest side of the room, its border included.")
    size_max: int = Field(6, ge=5, le=12, description="Largest side of the room, its border included.")
    boxes: int = Field(2, ge=1, le=4, description="Boxes, and targets for them.")
    solution_min: int = Field(1, ge=1, le=200, description="Fewest moves of a level's shortest solution.")
    solution_max: int | None = Field(
        None, ge=1, le=200, description="Most moves of a level's shortest solution; null: as many as `max_turns`."
    )
    ends_when_stuck: bool = Field(
        False, description="End an episode as failed once its boxes can no longer all be brought to targets."
    )
    masked: bool = Field(False, description="Abstract symbols and no rules: only action names are given.")
    max_turns: int = Field(30, ge=1, le=1000, description="Turns before an episode counts as failed.")
    held_out_from: HeldOutFrom = 1_000_000
    held_out_moves: FewestMoves = 3

    @property
    def longest(self) -> int:
        """Most moves of a level's shortest solution."""
        return self.max_turns if self.solution_max is None else self.solution_max

    @model_validator(mode="after")
    def _playable(self) -> SokobanConfig:
        if self.size_min > self.size_max:
            raise ValueError(f"size_min {self.size_min} is larger than size_max {self.size_max}")
        if self.longest > self.max_turns:
            raise ValueError(f"solution_max {self.solution_max} is more than max_turns {self.max_turns}")
        fewest = {"solution_min": self.solution_min}
        if self.held_out_from is not None:
            fewest["held_out_moves"] = self.held_out_moves
        for name, moves in fewest.items():
            if moves > self.longest:
                raise ValueError(f"{name} {moves} is more than the {self.longest} moves that a level may take")
        needed, most = 2 * self.boxes + 2, floor_range(self.size_min, self.boxes)[1]
        if most < needed:
            raise ValueError(
                f"boxes {self.boxes} need {needed} cells of floor, found {most} at most in a room of size_min "
                f"{self.size_min}"
            )
        return self

    def make(self) -> SokobanEnvironment:
        """A wave of Sokoban episodes."""
        return SokobanEnvironment(self)


@dataclass
class _Slot:
    level: SokobanLevel
    state: State
    turns: int = 0
    done: bool = False


class SokobanEnvironment(Slots[_Slot]):
    """A wave of Sokoban episodes (protocol `Environment`). Reward is 1 once every box is on a target, else 0.

    `max_turns` ends an episode at the turn limit. A move that a wall or a box stops is legal and changes nothing; an
    illegal action spends a turn.
    """

    def __init__(self, config: SokobanConfig) -> None:
        super().__init__()
        self.config = config
        self._symbols = _MASKED if config.masked else _PLAIN
        self._goal = _MASKED_GOAL if config.masked else _PLAIN_GOAL
        self._levels = sokoban_levels(
            sizes=(config.size_min, config.size_max),
            boxes=config.boxes,
            lengths=(config.solution_min, config.longest),
            held_out_from=config.held_out_from,
            held_out_moves=config.held_out_moves,
        )

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i. Raises BadInput where a seed finds no level."""
        self._slots = [_Slot(level, level.start) for level in map(self._levels.of, seeds)]
        return [Start(self._goal, self._text(slot), tuple(ACTIONS)) for slot in self._slots]

    def _text(self, slot: _Slot) -> str:
        return slot.level.room.text(slot.state, self._symbols)

    def _step(self, slot: _Slot, action: str | None) -> Step:
        room, legal = slot.level.room, action in ACTIONS
        if action is not None and legal:
            slot.state = room.moved(slot.state, action)
        reason, feedback = None, "" if legal else refusal(ACTIONS)
        if room.is_solved(slot.state):
            reason = StopReason.success
        elif self.config.ends_when_stuck and slot.state not in solutions(room):
            reason = StopReason.failure
            feedback = feedback if self.config.masked else _STUCK
        elif slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        return stepped(slot, reason, with_ending(self._text(slot), reason), tuple(ACTIONS), feedback, legal=legal)

    def oracle(self, slot: int) -> str | None:
        """First action of a shortest solution; None when the episode is done or can no longer be won."""
        state = self._slots[slot]
        return None if state.done else best_action(state.level.room, state.state)

    def content(self, slot: int) -> str:
        """Walls and targets of a slot's room, in plain symbols."""
        return self._slots[slot].level.content
