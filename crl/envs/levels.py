"""Which level a seed means: held out by content, long enough to say something, and always the same one.

Two seeds may draw one level, so seeds alone hold nothing out. A hash of what a level holds decides whose it is: seeds
from `held_out_from` on are given held-out levels only, smaller ones never are. A level on the wrong side, or a held-out
one that is won in too few moves, is passed over for the seed's next draw. Held-out seeds of a block of 64 are given
different levels, as far as there are so many.

What a level is, and what of it counts as its content, each environment says for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import Field

from crl.errors import BadInput

HELD_OUT_SHARE = 0.25
"""Share of all levels that is held out."""
BLOCK = 64
"""Consecutive held-out seeds, from `held_out_from` on, whose levels differ."""
REPEATS = 40
"""Levels of the block that a seed passes over before it takes one of them again, and so do all seeds after it: there
seem to be no others."""
_CACHED = 4096

FewestMoves = Annotated[int, Field(ge=1, le=64, description="Fewest moves that a held-out level needs.")]
"""The field of a config."""


def check_winnable(held_out_from: int | None, held_out_moves: int, max_turns: int) -> None:
    """Raise ValueError where no held-out level could be won in its turns."""
    if held_out_from is not None and held_out_moves > max_turns:
        raise ValueError(f"held_out_moves {held_out_moves} is more than max_turns {max_turns}")


class Level(Protocol):
    """What an environment draws for a seed."""

    @property
    def content(self) -> str:
        """What a player could know by heart, as text; equal for equal levels."""

    @property
    def moves(self) -> int | None:
        """Moves that the shortest way takes, or a lower bound of them; None where nobody can tell."""


@dataclass(frozen=True)
class Drawn:
    """A level with its content alone (protocol `Level`): nobody can tell how many moves it takes."""

    state: Any
    """What its game is made from."""
    content: str
    moves: int | None = None


L = TypeVar("L", bound=Level)


def is_held_out(content: str) -> bool:
    """Whether a level of this content is for evaluation only."""
    return hashlib.sha256(content.encode("utf-8", "replace")).digest()[0] < 256 * HELD_OUT_SHARE


class Levels(Generic[L]):
    """The level of every seed of one environment; the last ones are kept in memory.

    Args:
        draw: the endless draws of a seed, the same in every process; None is a draw that makes no level.
        held_out_from: first seed of the held-out levels; None: levels are not kept apart.
        fewest_moves: moves that a held-out level needs at least, where its environment can tell.
        draws: draws of a seed after which there is no such level.
        where, next_step: what errors name and advise.
    """

    def __init__(
        self,
        draw: Callable[[int], Iterator[L | None]],
        *,
        held_out_from: int | None,
        fewest_moves: int,
        draws: int,
        where: str,
        next_step: str = "choose settings with more levels, lower held_out_moves, or set held_out_from: null: then its "
        "evaluation is on levels that training knows",
    ) -> None:
        self._draw, self._first, self._fewest = draw, held_out_from, fewest_moves
        self._draws, self._where, self._next_step = draws, where, next_step
        self._blocks: dict[int, list[L]] = {}
        self._repeating: set[int] = set()
        self._training = lru_cache(maxsize=_CACHED)(self._training_level)

    def of(self, seed: int) -> L:
        """The level of a seed. Raises BadInput where none of its draws is on its side and long enough."""
        if self._first is None or seed < self._first:
            return self._training(seed)
        block, place = divmod(seed - self._first, BLOCK)
        levels = self._blocks.setdefault(block, [])
        while len(levels) <= place:
            levels.append(self._held_out_level(self._first + block * BLOCK + len(levels), levels, block))
        return levels[place]

    def _training_level(self, seed: int) -> L:
        seen: set[str] = set()
        for level in self._drawn(seed):
            if self._first is None or not is_held_out(level.content):
                return level
            seen.add(level.content)
        raise self._no_level(seed, "of training", seen)

    def _held_out_level(self, seed: int, taken: list[L], block: int) -> L:
        used = set() if block in self._repeating else {level.content for level in taken}
        repeated: list[L] = []
        seen: set[str] = set()
        for level in self._drawn(seed):
            seen.add(level.content)
            if not is_held_out(level.content) or (level.moves is not None and level.moves < self._fewest):
                continue
            if level.content not in used:
                return level
            repeated.append(level)
            if len(repeated) == REPEATS:
                self._repeating.add(block)
                break
        if not repeated:
            raise self._no_level(seed, f"that is held out and takes at least {self._fewest} moves", seen)
        return repeated[-1]

    def _drawn(self, seed: int) -> Iterator[L]:
        return (level for level in islice(self._draw(seed), self._draws) if level is not None)

    def _no_level(self, seed: int, kind: str, seen: set[str]) -> BadInput:
        return BadInput(
            f"seed {seed} finds no level {kind}: {self._draws} draws made {len(seen)} different level"
            + ("s" if len(seen) != 1 else ""),
            expected=f"levels on both sides: by a hash of its content, {HELD_OUT_SHARE:.0%} of all levels are held out",
            where=self._where,
            next_step=self._next_step,
        )
