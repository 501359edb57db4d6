"""Key then goal, in realms: what an experience bank is for, small enough to measure in minutes.

A grid holds the agent and a few abstract symbols. One symbol is the key, one the goal, the others are deadly decoys,
and so is the goal before the key. Which symbol is which is a rule of the realm: hidden, the same in all its episodes,
drawn from the world's seed. An episode shows whether it was won, never the rule, so what one episode finds out helps
all later ones of the realm: by an experience that is passed on, or slowly through the weights.

What is held out, by construction (no list is kept):

- layouts (symbols, their cells, the agent's cell): a layout's hash decides whether it is for evaluation; seeds from
  `held_out_from` on draw only such layouts, smaller ones never do, in all realms and worlds (`crl/envs/levels.py`);
- rules: of the ordered pairs of symbols, each realm reserves a quarter by hash for worlds; practice draws the others.
  Every pair is practiced in other realms; under its own realm's name a reserved pair is not, so that an actor that
  knows nothing considers it slightly less likely there.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from crl.config.base import LAST_SEED
from crl.config.environments import EnvironmentConfig
from crl.envs.levels import FewestMoves, Levels
from crl.envs.slots import Slots, stepped
from crl.protocols import Start, Step, StopReason

ACTIONS: Mapping[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""The four moves with their offset (row, column)."""
PRACTICE_REALMS = 16
"""Realms that practice draws its names from, where the config does not say."""

WALL, EMPTY, KEY, GOAL, EARLY, DEADLY = "wall", "empty", "key", "goal", "early", "deadly"
"""What a move may meet, in the words of an explanation; early: the goal before the key."""

FEEDBACK = "invalid"
"""The answer to what names no move."""
_FAR = 10_000
_DRAWS = 20_000
_CLAIM = re.compile(r"\btake ([A-Z])(?: then ([A-Z]))?\b")


class RealmsConfig(EnvironmentConfig):
    """Fetch the key, then reach the goal, on a grid of abstract symbols. Each realm hides which symbols these are."""

    model_config = ConfigDict(title="Realms")

    kind: Literal["realms"] = "realms"
    realm: int = Field(0, ge=0, le=63, description="Which realm; its name r<number> appears in the goal.")
    # A mechanism that is off is no part of the method: experiments that compute the same have the same digest.
    realms: int = Field(
        PRACTICE_REALMS,
        ge=1,
        le=64,
        exclude_if=lambda value: value == PRACTICE_REALMS,
        description="Number of realms, for the names in practice games.",
    )
    world: int = Field(0, ge=0, lt=2**32, description="Seed of the hidden rules.")
    # A mechanism that is off is no part of the method: experiments that compute the same have the same digest.
    version: int = Field(
        0,
        ge=0,
        le=1000,
        exclude_if=lambda value: not value,
        description="Above 0: another rule for the same realm, for tasks that change.",
    )
    side: int = Field(4, ge=3, le=8, description="Side of the grid.")
    symbols: int = Field(8, ge=4, le=26, description="Symbols in all: A, B, C, …")
    objects: int = Field(4, ge=2, le=12, description="Symbols on a grid: key, goal and deadly decoys.")
    longest_path: int = Field(6, ge=2, le=64, description="Most moves of a shortest solution.")
    max_turns: int = Field(10, ge=2, le=1000, description="Turns after which an episode is lost.")
    practice: bool = Field(False, description="For warm starts: every seed draws a realm and rule that no world has.")
    held_out_from: int = Field(
        1_000_000,
        ge=1,
        le=LAST_SEED,
        description="From this seed on, layouts are held out: no smaller seed draws them.",
    )
    held_out_moves: FewestMoves = 3

    @model_validator(mode="after")
    def _fits(self) -> RealmsConfig:
        if self.realm >= self.realms:
            raise ValueError(f"realm {self.realm} is none of the {self.realms} there are: r0 to r{self.realms - 1}")
        if self.objects > self.symbols:
            raise ValueError(f"{self.objects} objects need as many symbols, found {self.symbols}")
        if self.objects + 1 > self.side**2 // 2:
            raise ValueError(f"{self.objects} objects leave no way on a grid of side {self.side}")
        if self.longest_path > self.max_turns:
            raise ValueError(f"longest_path {self.longest_path} is more than max_turns {self.max_turns}")
        if self.held_out_moves > self.longest_path:
            raise ValueError(f"held_out_moves {self.held_out_moves} is more than longest_path {self.longest_path}")
        return self

    @property
    def hidden_rule(self) -> bool:
        """Which symbols are key and goal; in practice that is nobody's rule."""
        return not self.practice

    def make(self) -> RealmsEnvironment:
        """A wave of episodes of the realm."""
        return RealmsEnvironment(self)


@dataclass(frozen=True)
class Layout:
    """One grid: the cell of every symbol (cells count row by row from 0), the agent's cell, key, goal and realm."""

    realm: int
    side: int
    cells: Mapping[str, int]
    start: int
    key: str
    goal: str

    @property
    def decoys(self) -> frozenset[int]:
        """Cells that are deadly whatever the agent holds."""
        return frozenset(cell for symbol, cell in self.cells.items() if symbol not in (self.key, self.goal))

    @property
    def content(self) -> str:
        """What a player could know by heart: the first observation. What its symbols mean is the realm's rule."""
        return self.text()

    @property
    def moves(self) -> int:
        """Moves of the shortest way over the key to the goal; large: no way."""
        return self.distances(False)[self.start] + self.distances(True)[self.cells[self.key]]

    def text(self) -> str:
        """The first observation: symbols with their cells in order of cells, and where the agent stands."""
        listed = sorted(self.cells.items(), key=lambda item: item[1])
        return " ".join([*(symbol_at(symbol, cell) for symbol, cell in listed), f"at p{self.start}"])

    def distances(self, has_key: bool) -> tuple[int, ...]:
        """Moves from every cell to the key, or with the key to the goal, around what is deadly; large: no way."""
        blocked = self.decoys if has_key else self.decoys | {self.cells[self.goal]}
        target = self.cells[self.goal if has_key else self.key]
        return _distances(self.side, target, blocked)


def hidden_rule(config: RealmsConfig) -> tuple[str, str]:
    """(key, goal) symbols of the config's realm in its world. A version has another key and another goal than the one
    before it wherever the realm's pairs allow it: nothing that an experience says of the old rule is right of the new
    one."""
    pairs = _rules(config.realm, config.symbols)[0]
    rule = _drawn(pairs, config.world, config.realm)
    for version in range(1, config.version + 1):
        others = tuple(pair for pair in pairs if pair[0] != rule[0] and pair[1] != rule[1])
        rule = _drawn(others or tuple(pair for pair in pairs if pair != rule), config.world, config.realm, version, 1)
    return rule


def _drawn(pairs: Sequence[tuple[str, str]], *entropy: int) -> tuple[str, str]:
    return pairs[int(np.random.default_rng(np.random.SeedSequence(entropy)).integers(len(pairs)))]


def experience_text(key: str, goal: str) -> str:
    """The experience that says all there is to know of a realm."""
    return f"take {key} then {goal}"


def claimed(text: str) -> tuple[str, str | None] | None:
    """The symbols that a text says to take, in its order; None where it says nothing of the kind."""
    claim = _CLAIM.search(text)
    return None if claim is None else (claim.group(1), claim.group(2))


def symbol_at(symbol: str, cell: int) -> str:
    """A symbol with its cell, as observations and plans write it. One word: a word-level miniature that has to look up
    a cell two words apart stays on a plateau (success 0.09 with the whole hint after 1,500 steps)."""
    return f"{symbol}@{cell}"


def layouts(config: RealmsConfig) -> Levels[Layout]:
    """The layout of every seed: held out or not as the seed says, and won in at most `longest_path` moves at best."""
    return Levels(
        lambda seed: _draws(config, seed),
        held_out_from=config.held_out_from,
        fewest_moves=config.held_out_moves,
        draws=_DRAWS,
        where=f"environment realms, side {config.side}, {config.objects} objects, longest_path {config.longest_path}",
        next_step="raise longest_path or side, or lower objects or held_out_moves",
    )


def _draws(config: RealmsConfig, seed: int) -> Iterator[Layout | None]:
    generator = np.random.default_rng(np.random.SeedSequence([config.world, config.realm, seed]))
    realm, rule = config.realm, hidden_rule(config)
    if config.practice:
        realm = int(generator.integers(config.realms))
        rules = _rules(realm, config.symbols)[1]
        rule = rules[int(generator.integers(len(rules)))]
    others = [symbol for symbol in symbol_names(config.symbols) if symbol not in rule]
    while True:
        decoys = [others[int(index)] for index in generator.permutation(len(others))[: config.objects - 2]]
        drawn = [int(cell) for cell in generator.permutation(config.side**2)[: config.objects + 1]]
        layout = Layout(
            realm, config.side, dict(zip([*rule, *decoys], drawn[1:], strict=True)), drawn[0], key=rule[0], goal=rule[1]
        )
        yield layout if layout.moves <= config.longest_path else None


def symbol_names(symbols: int) -> list[str]:
    """A, B, C, …: so many."""
    return [chr(ord("A") + index) for index in range(symbols)]


def vocabulary(config: RealmsConfig) -> list[str]:
    """Every word that goals, observations, actions and experiences of such grids are made of."""
    letters, names = symbol_names(config.symbols), [f"r{realm}" for realm in range(config.realms)]
    return [*ACTIONS, *letters, *observed(config.side, config.symbols), *names, "at", "take", "then", FEEDBACK]


def observed(side: int, symbols: int) -> list[str]:
    """The words an observation may begin with: symbols with their cells, the agent's cell, without and with the key."""
    objects = [symbol_at(symbol, cell) for symbol in symbol_names(symbols) for cell in range(side**2)]
    return objects + [f"{mark}{cell}" for mark in "pk" for cell in range(side**2)]


@dataclass
class _Slot:
    layout: Layout
    cell: int
    has_key: bool = False
    turns: int = 0
    done: bool = False
    why: str | None = None


class RealmsEnvironment(Slots[_Slot]):
    """A wave of episodes of one realm (protocols `Environment`, `KnowsTruth`, `KnowsRule`, `Explains`,
    `Graded`).

    Reward is 1 on the goal with the key, else 0.

    A decoy, and the goal before the key, end the episode as a failure, `max_turns` at the turn limit. A move into the
    border is legal and moves nothing.
    """

    def __init__(self, config: RealmsConfig) -> None:
        super().__init__()
        self.config = config
        self._layouts = layouts(config)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i."""
        drawn = [self._layouts.of(seed) for seed in seeds]
        self._slots = [_Slot(layout, layout.start) for layout in drawn]
        return [Start(f"r{layout.realm}", layout.text(), tuple(ACTIONS)) for layout in drawn]

    def oracle(self, slot: int) -> str | None:
        """First move of a shortest safe way, ties in the order of :data:`ACTIONS`; None when the episode is done."""
        moves = self.best_moves(slot)
        return moves[0] if moves else None

    def best_moves(self, slot: int) -> list[str]:
        """Every move that begins a shortest safe way; none when the episode is done or no way is left."""
        state = self._slots[slot]
        if state.done:
            return []
        distances = state.layout.distances(state.has_key)
        reached = {action: distances[_moved(state.layout.side, state.cell, action)] for action in ACTIONS}
        best = min(reached.values())
        return [action for action, distance in reached.items() if distance == best < _FAR]

    def moves_to(self, slot: int, symbol: str) -> list[str]:
        """Every move that begins a shortest way to a symbol around all others; any move where there is none."""
        state = self._slots[slot]
        blocked = frozenset(cell for other, cell in state.layout.cells.items() if other != symbol)
        distances = _distances(state.layout.side, state.layout.cells[symbol], blocked)
        reached = {action: distances[_moved(state.layout.side, state.cell, action)] for action in ACTIONS}
        return [action for action, distance in reached.items() if distance == min(reached.values())]

    def symbol_under(self, slot: int) -> str | None:
        """The symbol whose cell the agent of a slot stands on."""
        state = self._slots[slot]
        return next((symbol for symbol, cell in state.layout.cells.items() if cell == state.cell), None)

    def safe_moves(self, slot: int) -> list[str]:
        """Every move that does not end the episode as a failure."""
        state = self._slots[slot]
        deadly = state.layout.decoys if state.has_key else state.layout.decoys | {state.layout.cells[state.layout.goal]}
        return [action for action in ACTIONS if _moved(state.layout.side, state.cell, action) not in deadly]

    def layout(self, slot: int) -> Layout:
        """The layout of a slot, for demonstrations."""
        return self._slots[slot].layout

    def content(self, slot: int) -> str:
        """The first observation of a slot."""
        return self._slots[slot].layout.content

    def truth(self, text: str) -> float | None:
        """How much of a text's claim about this realm is right: 1 key and goal, 0.5 one of them; None: no claim.

        A metric for people. Nothing that is trained may see it.
        """
        claim = claimed(text)
        if claim is None or self.config.practice:
            return None
        key, goal = hidden_rule(self.config)
        return ((claim[0] == key) + (claim[1] == goal)) / 2

    def whole(self, text: str) -> bool:
        """Whether a text names both key and goal, in their order. A metric for people, too."""
        return not self.config.practice and claimed(text) == hidden_rule(self.config)

    def why(self, slot: int) -> str | None:
        """What the last move met, by the hidden rule: for models of the environment, never for players."""
        return self._slots[slot].why

    def difficulty(self, slot: int) -> float:
        """Moves of the shortest way, as a share of the turn limit."""
        return self._slots[slot].layout.moves / self.config.max_turns

    def _step(self, slot: _Slot, action: str | None) -> Step:
        slot.why = None
        legal = action in ACTIONS
        reason = self._move(slot, action) if action is not None and legal else None
        if reason is None and slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        observation = f"{'k' if slot.has_key else 'p'}{slot.cell}"
        return stepped(slot, reason, observation, tuple(ACTIONS), "" if legal else FEEDBACK, legal=legal)

    def _move(self, slot: _Slot, action: str) -> StopReason | None:
        layout = slot.layout
        target = _moved(layout.side, slot.cell, action)
        if target == slot.cell:
            slot.why = WALL
            return None
        slot.cell = target
        met = next((symbol for symbol, cell in layout.cells.items() if cell == target), None)
        if met is None:
            slot.why = EMPTY
            return None
        if met == layout.key:
            slot.why = f"{met} {KEY}"
            slot.has_key = True
            return None
        if met == layout.goal:
            slot.why = f"{met} {GOAL if slot.has_key else EARLY}"
            return StopReason.success if slot.has_key else StopReason.failure
        slot.why = f"{met} {DEADLY}"
        return StopReason.failure


@lru_cache(maxsize=256)
def _rules(realm: int, symbols: int) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The ordered pairs of different symbols, cut by hash: those reserved for worlds, and those for practice."""
    letters = symbol_names(symbols)

    def drawn(pair: tuple[str, str]) -> bytes:
        return hashlib.sha256(f"r{realm} {pair[0]}{pair[1]}".encode()).digest()

    pairs = sorted(permutations(letters, 2), key=drawn)
    reserved = len(pairs) // 4
    return tuple(pairs[:reserved]), tuple(pairs[reserved:])


def _moved(side: int, cell: int, action: str) -> int:
    row, column = cell // side + ACTIONS[action][0], cell % side + ACTIONS[action][1]
    return row * side + column if 0 <= row < side and 0 <= column < side else cell


@lru_cache(maxsize=65_536)
def _distances(side: int, target: int, blocked: frozenset[int]) -> tuple[int, ...]:
    """Moves from every cell to the target without entering a blocked one."""
    found = {target: 0}
    queue = deque([target])
    while queue:
        cell = queue.popleft()
        for action in ACTIONS:
            neighbor = _moved(side, cell, action)  # moves can be undone, so ways back are ways there
            if neighbor not in found and neighbor not in blocked:
                found[neighbor] = found[cell] + 1
                queue.append(neighbor)
    return tuple(found.get(cell, _FAR) for cell in range(side**2))
