"""Sokoban: push every box onto a target. Native, deterministic, solvable by seed.

Each seed draws its own level, whose shortest solution has between `solution_min` and
`solution_max` moves: that is the difficulty. A box that is pushed into a corner can never leave it; the game goes on
all the same, unless `ends_when_stuck` says otherwise. Plain, the rules are told; masked (the variant of the
Experiential RL paper, which has one box, sides 6 to 8 and 8 moves), symbols are abstract and only the names of the
actions are told.

A level is a floor from a random walk, targets on it, and a start that a search proves to be solvable. The search goes
backward from every solved state, pulling where the game pushes, until no state is left. So it finds every state that
can be solved, each with the exact number of moves that its shortest solution takes, pushes counted as moves. A level's
start is drawn from the states of the wanted lengths: first the length, then the state. The same search tells an oracle
the next move and an environment whether a state can still be solved.

What is held out (`crl/envs/levels.py`) are rooms: walls and targets. Where boxes and agent begin is no part of the
content, so no room is both trained and held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb
from typing import Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.levels import FewestMoves, Levels, is_held_out
from crl.envs.slots import Slots, refusal, stepped, with_ending
from crl.protocols import Start, Step, StopReason

ACTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""The four moves with their offset (row, column)."""
_DIRECTIONS = tuple(ACTIONS)

Cell = tuple[int, int]
"""(row, column)."""
State = int
"""Who is where on a room's floor: the agent's cell in the low `_AGENT_BITS` bits, above them one bit per cell with a
box. A cell is its index in `Room.floor`."""
_AGENT_BITS = 7
_AGENT = (1 << _AGENT_BITS) - 1

MOST_STATES = 20_000
"""States of a room at most, so that its search ends soon: rooms of many boxes have less floor."""
_FLOOR_SHARE = 0.9
"""Share of the cells within the border that may be floor."""
_WALK = 512
"""Steps of a random walk; one that has not reached its floor by then has what it has."""
_DRAWS = 5_000
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


def floor_range(side: int, boxes: int) -> tuple[int, int]:
    """Fewest and most floor cells of a room of `side` x `side` cells, border included."""
    most = int((side - 2) ** 2 * _FLOOR_SHARE)
    while most > 2 * boxes and comb(most, boxes) * (most - boxes) > MOST_STATES:
        most -= 1
    return min(4 * boxes + 3, most), most


@dataclass(frozen=True)
class Room:
    """Walls and targets. `floor` holds the cells without a wall in reading order, `targets` indexes into it."""

    side: int
    floor: tuple[Cell, ...]
    targets: frozenset[int]

    @cached_property
    def near(self) -> tuple[tuple[int | None, ...], ...]:
        """The floor cell beside each floor cell in the order of :data:`ACTIONS`; None is a wall."""
        index = {cell: number for number, cell in enumerate(self.floor)}
        return tuple(tuple(index.get((r + down, c + right)) for down, right in ACTIONS.values()) for r, c in self.floor)

    @property
    def solved(self) -> int:
        """Bits of the boxes where all of them are on targets."""
        return sum(1 << (_AGENT_BITS + target) for target in self.targets)

    def is_solved(self, state: State) -> bool:
        """Whether every box is on a target."""
        return state & ~_AGENT == self.solved

    def moved(self, state: State, action: str) -> State:
        """The state after an action; the same one where a wall or a box that cannot move holds the agent back."""
        direction, agent = _DIRECTIONS.index(action), state & _AGENT
        target = self.near[agent][direction]
        if target is None:
            return state
        if state >> (_AGENT_BITS + target) & 1:
            behind = self.near[target][direction]
            if behind is None or state >> (_AGENT_BITS + behind) & 1:
                return state
            state += (1 << (_AGENT_BITS + behind)) - (1 << (_AGENT_BITS + target))
        return state + target - agent

    def text(self, state: State | None, symbols: Mapping[str, str]) -> str:
        """The room as rows of symbols; without a state, walls, floor and targets alone."""
        rows = [[symbols["wall"]] * self.side for _ in range(self.side)]
        for number, (row, column) in enumerate(self.floor):
            thing = "floor"
            if state is not None and state >> (_AGENT_BITS + number) & 1:
                thing = "box"
            elif state is not None and state & _AGENT == number:
                thing = "agent"
            if number in self.targets:
                thing = "target" if thing == "floor" else f"{thing} on target"
            rows[row][column] = symbols[thing]
        return "\n".join(map(" ".join, rows))

    def layers(self, furthest: int | None = None) -> list[list[State]]:
        """The states whose shortest solution takes 0, 1, 2, … moves, up to `furthest` or until there are no others."""
        back = self._back()
        frontier = [self.solved | agent for agent in range(len(self.floor)) if agent not in self.targets]
        seen, found = set(frontier), list[list[State]]()
        while frontier and (furthest is None or len(found) <= furthest):
            found.append(frontier)
            before_these: list[State] = []
            for state in frontier:
                for free, step, box, pull in back[state & _AGENT]:
                    if state & free:
                        continue
                    before = state + step
                    if before not in seen:
                        seen.add(before)
                        before_these.append(before)
                    if state & box:
                        before += pull
                        if before not in seen:
                            seen.add(before)
                            before_these.append(before)
            frontier = before_these
        return found

    def _back(self) -> list[list[tuple[int, int, int, int]]]:
        """For each cell, the ways in which the agent may have come there: the bit of the cell that it came from, which
        no box may hold; what going back adds to the state; the bit of the box that it may have pushed, 0 where a wall
        is ahead; what pulling this box back adds."""
        bit = [1 << (_AGENT_BITS + number) for number in range(len(self.floor))]
        ways: list[list[tuple[int, int, int, int]]] = []
        for agent, (up, down, left, right) in enumerate(self.near):
            ways.append([])
            for came, ahead in ((down, up), (up, down), (right, left), (left, right)):
                if came is not None:
                    box = 0 if ahead is None else bit[ahead]
                    ways[-1].append((bit[came], came - agent, box, bit[agent] - box))
        return ways


@lru_cache(maxsize=32)
def solutions(room: Room) -> Mapping[State, int]:
    """Moves of the shortest solution of every state of a room that can be solved."""
    return {state: moves for moves, layer in enumerate(room.layers()) for state in layer}


def best_action(room: Room, state: State) -> str | None:
    """First action of a shortest solution, ties in the order of :data:`ACTIONS`; None where the state is solved or can
    no longer be."""
    table = solutions(room)
    moves = table.get(state)
    if not moves:
        return None
    return next(action for action in ACTIONS if table.get(room.moved(state, action)) == moves - 1)


@dataclass(frozen=True)
class SokobanLevel:
    """A room with a start that takes `moves` moves to solve."""

    room: Room
    start: State
    moves: int

    @property
    def content(self) -> str:
        """Walls and targets, in the symbols of the plain variant."""
        return self.room.text(None, {"wall": "W", "floor": ".", "target": "G"})


def sokoban_levels(
    *,
    sizes: tuple[int, int],
    boxes: int,
    lengths: tuple[int, int],
    held_out_from: int | None,
    held_out_moves: int,
) -> Levels[SokobanLevel]:
    """The level of every seed. `sizes`: smallest and largest side; `lengths`: fewest and most moves of the shortest
    solution."""

    def draws(seed: int) -> Iterator[SokobanLevel | None]:
        generator = np.random.default_rng(np.random.SeedSequence(seed))
        held_out = held_out_from is not None and seed >= held_out_from
        fewest = max(lengths[0], held_out_moves) if held_out else lengths[0]
        while True:
            room = _room(generator, sizes, boxes)
            level = None
            # A room of the other side is passed over before it is searched, which takes nearly all of the time.
            if room is not None and (held_out_from is None or _is_room_held_out(room) == held_out):
                level = _start(generator, room, fewest, lengths[1])
            yield level

    return Levels(
        draws,
        held_out_from=held_out_from,
        fewest_moves=held_out_moves,
        draws=_DRAWS,
        where=f"environment sokoban, sides {sizes[0]} to {sizes[1]}, {boxes} boxes, solutions of {lengths[0]} to "
        f"{lengths[1]} moves",
        next_step="allow shorter solutions (solution_min, held_out_moves), or larger rooms",
    )


def _is_room_held_out(room: Room) -> bool:
    return is_held_out(SokobanLevel(room, 0, 0).content)


def _room(generator: np.random.Generator, sizes: tuple[int, int], boxes: int) -> Room | None:
    """A room whose floor a random walk has reached; None where that is too little for its boxes."""
    side = int(generator.integers(sizes[0], sizes[1] + 1))
    fewest, most = floor_range(side, boxes)
    wanted = int(generator.integers(fewest, most + 1))
    row, column = (int(place) for place in generator.integers(1, side - 1, size=2))
    reached = {(row, column)}
    offsets = tuple(ACTIONS.values())
    for way in generator.integers(0, 4, size=_WALK).tolist():
        down, right = offsets[way]
        if 0 < row + down < side - 1 and 0 < column + right < side - 1:
            row, column = row + down, column + right
            reached.add((row, column))
            if len(reached) == wanted:
                break
    if len(reached) < fewest:
        return None
    targets = generator.permutation(len(reached))[:boxes].tolist()
    return Room(side, tuple(sorted(reached)), frozenset(targets))


def _start(generator: np.random.Generator, room: Room, fewest: int, most: int) -> SokobanLevel | None:
    """A start of the wanted lengths, each length as likely as another; None where the room has none."""
    layers = room.layers(most)
    if len(layers) <= fewest:
        return None
    moves = int(generator.integers(fewest, len(layers)))
    return SokobanLevel(room, layers[moves][int(generator.integers(len(layers[moves])))], moves)


class SokobanConfig(EnvironmentConfig):
    """Sokoban; every level can be solved. `masked` hides symbols and rules."""

    model_config = ConfigDict(title="Sokoban")

    kind: Literal["sokoban"] = "sokoban"
    size_min: int = Field(6, ge=5, le=12, description="Smallest side, border included.")
    size_max: int = Field(6, ge=5, le=12, description="Largest side, border included.")
    boxes: int = Field(2, ge=1, le=4, description="Boxes, and targets.")
    solution_min: int = Field(1, ge=1, le=200, description="Fewest moves of a shortest solution.")
    solution_max: int | None = Field(
        None, ge=1, le=200, description="Most moves of a shortest solution; null: max_turns."
    )
    ends_when_stuck: bool = Field(False, description="End an episode as lost once it cannot be solved any more.")
    masked: bool = Field(False, description="Abstract symbols, no rules: only action names are given.")
    max_turns: int = Field(30, ge=1, le=1000, description="Turns after which an episode is lost.")
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
