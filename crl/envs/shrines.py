"""Shrines: offer the right things in the right order. A hidden rule in plain words, for a real language model.

A few things are laid before a shrine. It opens when some are offered in the right order; a wrong offering ends the
game. Which things, and in which order, is the shrine's rule: hidden, the same in all its games, drawn from the world's
seed. A game shows what was taken and what was refused, so each one finds out a little, and an experience that is passed
on saves the next player from finding it out again.

What is held out, by construction (no list is kept):

- games: the set of things that are there decides by its hash (`crl/envs/levels.py`); seeds from `held_out_from` on draw
  only such sets, smaller ones never do, at every shrine and in every world;
- rules: of all ordered choices of things a quarter is reserved for worlds, by hash; practice draws the others,
  and practices at shrines of other names, so that a warm start teaches how to play and no answer.

An experience says a beginning of the rule, or what is refused after it, or both:

    Offer the red shrine the bell, then the cup.
    Offer the red shrine the bell, then the cup. It refuses the coin third.
    The red shrine refuses the stone first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from crl.config.base import LAST_SEED
from crl.config.environments import EnvironmentConfig
from crl.envs.levels import Levels
from crl.envs.slots import Slots, stepped
from crl.errors import BadInput
from crl.protocols import Lesson, Start, Step, StopReason
from crl.records import Episode, Turn

NAMES = (
    "red", "blue", "green", "black", "white", "amber", "silver", "golden",
    "grey", "pink", "brown", "purple", "orange", "yellow", "violet", "copper",
)  # fmt: skip
"""Shrines of worlds."""
PRACTICE_NAMES = (
    "tall", "round", "old", "cold", "dark", "bright", "quiet", "narrow",
    "broken", "hollow", "great", "small", "long", "high", "low", "wide",
)  # fmt: skip
"""Shrines of practice."""
THINGS = (
    "bell", "coin", "book", "ring", "cup", "flag", "stone", "mask", "shell", "apple", "rose", "clock", "wheel", "salt",
    "seed", "leaf", "bone", "thread", "glass", "milk", "bread", "wine", "egg", "horn",
)  # fmt: skip
"""What may be there; a config uses the first `things`. Each is one token of common tokenizers, as are the names."""
_ATTEMPTS = 10_000
_TRUE, _FULL, _REFUSED = 0.8, 0.45, 0.5
"""Shares of demonstrated hints: those that say anything; of these, the whole rule; of the others, a refusal alone."""
_MOST_REFUSED = 4
"""Things that one experience says are refused: more would not fit into an output."""
ORDINALS = ("first", "second", "third", "fourth", "fifth")
_THINGS = r"\w+(?: and the \w+)*"
_REFUSES = rf"refuses the (?P<%s>{_THINGS}) (?P<%s>{'|'.join(ORDINALS)})\."
_NOTE = re.compile(
    r"Offer the \w+ shrine the (?P<taken>\w+(?:, then the \w+)*)\."
    rf"(?: It {_REFUSES % ('next', 'next_place')})?"
    rf"|The \w+ shrine {_REFUSES % ('first', 'first_place')}",
    re.IGNORECASE,
)


class ShrinesConfig(EnvironmentConfig):
    """Offer the right things in the right order. Each shrine hides its rule. In plain words, for language models."""

    model_config = ConfigDict(title="Shrines")

    kind: Literal["shrines"] = "shrines"
    shrine: int = Field(0, ge=0, le=15, description="Which shrine; its name, a color, appears in the goal.")
    world: int = Field(0, ge=0, lt=2**32, description="Seed of the hidden rules.")
    steps: int = Field(3, ge=1, le=5, description="Things to offer.")
    choices: int = Field(4, ge=2, le=12, description="Things to choose from.")
    things: int = Field(16, ge=4, le=24, description="Things in all.")
    max_turns: int = Field(6, ge=1, le=1000, description="Turns after which an episode is lost.")
    practice: bool = Field(False, description="For warm starts: every seed draws a shrine and rule that no world has.")
    held_out_from: int = Field(
        1_000_000,
        ge=1,
        le=LAST_SEED,
        description="From this seed on, sets of things are held out: no smaller seed draws them.",
    )

    @model_validator(mode="after")
    def _fits(self) -> ShrinesConfig:
        if not self.steps <= self.choices <= self.things:
            raise ValueError(
                f"{self.steps} steps, {self.choices} choices and {self.things} things: they must not decrease"
            )
        if self.max_turns < self.steps:
            raise ValueError(f"max_turns {self.max_turns} is less than the {self.steps} steps that winning takes")
        return self

    @property
    def hidden_rule(self) -> bool:
        """What the shrine wants, in which order; in practice that is nobody's rule."""
        return not self.practice

    @property
    def teaches(self) -> bool:
        """Practice games are played at shrines that no task has."""
        return True

    def make(self) -> ShrinesEnvironment:
        """A wave of games at the shrine."""
        return ShrinesEnvironment(self)


@dataclass(frozen=True)
class Game:
    """One game: the shrine's name, its rule, and the things that lie before it, in the order they are listed."""

    name: str
    rule: tuple[str, ...]
    things: tuple[str, ...]

    @property
    def content(self) -> str:
        """What a player could know by heart: the things, in whatever order they lie."""
        return " ".join(sorted(self.things))

    @property
    def moves(self) -> int:
        """Offerings that opening it takes."""
        return len(self.rule)


def hidden_rule(config: ShrinesConfig) -> tuple[str, ...]:
    """The rule of the config's shrine in its world."""
    generator = np.random.default_rng(np.random.SeedSequence([config.world, config.shrine]))
    return _drawn_rule(config, NAMES[config.shrine], generator, reserved=True)


def games(config: ShrinesConfig) -> Levels[Game]:
    """The game of every seed, held out or not as the seed says."""
    return Levels(
        lambda seed: _draws(config, seed),
        held_out_from=config.held_out_from,
        fewest_moves=0,
        draws=_ATTEMPTS,
        where=f"environment shrines, {config.things} things of which {config.choices} are choices",
        next_step="raise things or choices, or choose another world",
    )


def _draws(config: ShrinesConfig, seed: int) -> Iterator[Game]:
    generator = np.random.default_rng(np.random.SeedSequence([config.world, config.shrine, seed]))
    name, rule = NAMES[config.shrine], hidden_rule(config)
    if config.practice:
        name = PRACTICE_NAMES[int(generator.integers(len(PRACTICE_NAMES)))]
        rule = _drawn_rule(config, name, generator, reserved=False)
    others = [thing for thing in THINGS[: config.things] if thing not in rule]
    while True:
        decoys = [others[int(index)] for index in generator.permutation(len(others))[: config.choices - config.steps]]
        lying = [*rule, *decoys]
        yield Game(name, rule, tuple(lying[int(index)] for index in generator.permutation(len(lying))))


@dataclass
class _Slot:
    game: Game
    left: list[str] = field(default_factory=list)
    taken: int = 0
    turns: int = 0
    done: bool = False


class ShrinesEnvironment(Slots[_Slot]):
    """A wave of games at one shrine (protocols `Environment`, `KnowsTruth`, `KnowsRule`, `Teacher`).

    Reward is 1 when it opens, else 0. A refused offering ends the game as a failure, `max_turns` at the turn limit. An
    action is the name of a thing.
    """

    def __init__(self, config: ShrinesConfig) -> None:
        super().__init__()
        self.config = config
        self._games = games(config)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i."""
        drawn = [self._games.of(seed) for seed in seeds]
        self._slots = [_Slot(game, list(game.things)) for game in drawn]
        return [
            Start(
                f"Open the {game.name} shrine: offer {self.config.steps} of these things, in its own order.",
                _lying(game.things),
                game.things,
            )
            for game in drawn
        ]

    def _step(self, slot: _Slot, action: str | None) -> Step:
        legal = action in slot.left
        told, reason = _lying(slot.left), None
        if action is not None and legal:
            if action == slot.game.rule[slot.taken]:
                slot.left.remove(action)
                slot.taken += 1
                opened = slot.taken == len(slot.game.rule)
                reason = StopReason.success if opened else None
                told = f"The shrine takes the {action}" + (" and opens." if opened else f". {_lying(slot.left)}")
            else:
                reason = StopReason.failure
                told = f"The shrine refuses the {action} and stays shut."
        if reason is None and slot.turns >= self.config.max_turns:
            reason, told = StopReason.turn_limit, f"{told} No turns are left."
        feedback = "" if legal else "That names nothing that lies here."
        return stepped(slot, reason, told, tuple(slot.left), feedback, legal=legal)

    def oracle(self, slot: int) -> str | None:
        """The next thing of the rule; None when the episode is done."""
        state = self._slots[slot]
        return None if state.done else state.game.rule[state.taken]

    def content(self, slot: int) -> str:
        """The things of a slot's game."""
        return self._slots[slot].game.content

    def truth(self, text: str) -> float | None:
        """How much of what an experience says about this shrine is right: the share of its claims; None: it claims
        nothing.

        A metric for people. Nothing that is trained may see it.
        """
        claim = read_claim(text)
        if claim is None or self.config.practice:
            return None
        return claim.share_right(hidden_rule(self.config))

    def whole(self, text: str) -> bool:
        """Whether an experience names every thing of the rule, in its order. A metric for people, too."""
        claim = read_claim(text)
        return claim is not None and not self.config.practice and claim.taken == tuple(hidden_rule(self.config))

    def practice(self) -> ShrinesEnvironment:
        """The same game at shrines whose rules no world has."""
        return ShrinesEnvironment(self.config.model_copy(update={"practice": True}))

    def hint(self, slot: int, random: np.random.Generator, *, true: bool = True) -> str | None:
        """An experience to show in a demonstration: the whole rule, its beginning, or what is refused; None: no
        experience.

        With `true` False one thing of it is wrong, as an experience from another player may be.
        """
        game = self._slots[slot].game
        if random.random() >= _TRUE:
            return None
        known = len(game.rule) if random.random() < _FULL else int(random.integers(len(game.rule)))
        taken = list(game.rule[:known])
        refused: list[str] = []
        wrong = [thing for thing in game.things if thing not in game.rule[: known + 1]]
        if known < len(game.rule) and wrong and (not taken or random.random() < _REFUSED):
            refused = [str(random.choice(wrong))]
        if not true and taken:
            place = int(random.integers(len(taken)))
            others = [thing for thing in game.things if thing not in taken]
            if others:
                taken[place] = str(random.choice(others))
                refused = [thing for thing in refused if thing not in taken]
        return write_claim(game.name, Claim(tuple(taken), tuple(refused)))

    def lesson(self, episode: Episode, turns: Sequence[Turn]) -> Lesson:
        """What a careful player would write after a game, from what it showed and the experience that guided it."""
        return lesson_of(episode, turns)

    def tidied(self, experiences: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
        """A beginning of the rule is left out beside a longer one that goes on from it; refusals after the same
        beginning become one experience."""
        return tidied(experiences)


def _lying(things: Sequence[str]) -> str:
    return f"Here are: {', '.join(things)}."


def _drawn_rule(config: ShrinesConfig, name: str, generator: np.random.Generator, *, reserved: bool) -> tuple[str, ...]:
    """A rule of a shrine on one side of the hash that reserves rules for worlds."""
    for _ in range(_ATTEMPTS):
        rule = tuple(THINGS[int(index)] for index in generator.permutation(config.things)[: config.steps])
        if (hashlib.sha256(" ".join(rule).encode()).digest()[0] < 64) is reserved:
            return rule
    raise BadInput(
        f"no rule was found for the {name} shrine",
        expected="more things to choose from",
        where=f"environment shrines, {config.things} things, {config.steps} steps",
        next_step="raise things",
    )


@dataclass(frozen=True)
class Claim:
    """What an experience says of a shrine: `taken` is a beginning of its rule, `refused` is not taken after it."""

    taken: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def share_right(self, rule: Sequence[str]) -> float:
        """Share of the things named that are right about a rule."""
        right = [thing == at for thing, at in zip(self.taken, rule, strict=False)]
        right += [False] * (len(self.taken) - len(right))
        following = rule[len(self.taken)] if len(self.taken) < len(rule) else None
        right += [thing != following for thing in self.refused]
        return sum(right) / len(right)


def write_claim(name: str, claim: Claim) -> str | None:
    """The experience that makes a claim about a shrine; None where it claims nothing."""
    refused = " and the ".join(claim.refused)
    ordinal = ORDINALS[len(claim.taken)] if len(claim.taken) < len(ORDINALS) else "next"
    if claim.taken:
        text = f"Offer the {name} shrine the {', then the '.join(claim.taken)}."
        return f"{text} It refuses the {refused} {ordinal}." if refused else text
    return f"The {name} shrine refuses the {refused} {ordinal}." if refused else None


def read_claim(text: str) -> Claim | None:
    """The claim of an experience; None where any of it is something else, which nobody could check."""
    found = _NOTE.fullmatch(text.strip())
    if found is None:
        return None
    taken = tuple(found["taken"].lower().split(", then the ")) if found["taken"] else ()
    refused, place = found["next"] or found["first"], found["next_place"] or found["first_place"]
    if refused and ORDINALS.index(place.lower()) != len(taken):
        return None
    return Claim(taken, tuple(refused.lower().split(" and the ")) if refused else ())


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """What a game teaches beyond the experience that guided it: a new experience, a better one, or nothing."""
    offered = [turn.action for turn in turns if turn.valid and turn.action]
    lost = episode.stop_reason == "failure"
    taken, refused = tuple(offered[:-1] if lost else offered), tuple(offered[-1:] if lost else ())
    name = _name(episode)
    told = write_claim(name, Claim(taken, refused))
    if told is None:  # nothing was offered
        return Lesson("return")
    if not episode.guided:
        return Lesson("add", told)
    guide = read_claim(episode.experience or "") or Claim(())
    if episode.success:
        return Lesson("return") if guide.taken == taken else Lesson("update", told)
    if taken == guide.taken[: len(taken)] and len(taken) < len(guide.taken):
        # Lost on the way that the experience points out: the experience is wrong if it was followed, else nothing is
        # new.
        return Lesson("update", told) if refused == guide.taken[len(taken) : len(taken) + 1] else Lesson("return")
    if taken == guide.taken and (not refused or refused[0] in guide.refused):
        return Lesson("return")
    return Lesson("update", told)


def tidied(experiences: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """What :meth:`ShrinesEnvironment.tidied` says of experiences of one shrine. One that claims nothing stays."""
    claims = [read_claim(text) for text in experiences]
    longest = sorted({claim.taken for claim in claims if claim is not None}, key=len, reverse=True)
    stands: dict[tuple[str, ...] | int, list[int]] = {}
    for place, claim in enumerate(claims):
        beyond = [taken for taken in longest if claim is not None and taken[: len(claim.taken)] == claim.taken]
        stands.setdefault(beyond[0] if beyond else place, []).append(place)
    found = []
    for taken, places in stands.items():
        refused = [
            thing for place in places if (claim := claims[place]) and claim.taken == taken for thing in claim.refused
        ]
        text = experiences[places[0]]
        name = re.search(r"\bthe (\w+) shrine\b", text, re.IGNORECASE)
        if not isinstance(taken, int) and len(places) > 1 and name is not None:
            things = tuple(dict.fromkeys(refused))[:_MOST_REFUSED]
            text = write_claim(name.group(1), Claim(taken, things)) or text
        found.append((text, tuple(places)))
    return found


def _name(episode: Episode) -> str:
    """The shrine's name, from the goal: `Open the red shrine: …`."""
    found = re.search(r"\bthe (\w+) shrine\b", episode.goal)
    return found.group(1) if found else "last"
