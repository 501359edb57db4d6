"""A player that sees the whole state: the first command of a short way to the goal.

It reads the goal of the game, whatever its family: which things have to be where, which have to be clean, hot, cool or
switched on, and what has to be in the hand at a place. For every choice of things that the goal leaves open it works
out a way (fetch, change, put down) and takes the shortest; each step of a way leaves the rest of it, so following it
ends. Who can change what is read from the rules. For demonstrations only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations

from crl.worlds.alfworld.game import State
from crl.worlds.alfworld.pddl import Atom, Conjunction
from crl.worlds.alfworld.rules import PlannedAction, query_of

_CHOICES = 4000
"""Choices of things that are compared; a game has a few hundred."""


@dataclass(frozen=True)
class _Move:
    """One action of a way, by the things that tell it from others."""

    action: str
    thing: str | None
    receptacle: str | None


@dataclass
class _Way:
    """A way under construction: what was done, and how things would be then."""

    state: State
    place: str
    held: str | None
    moves: list[_Move] = field(default_factory=list)
    opened: set[str] = field(default_factory=set)

    def go(self, receptacle: str) -> bool:
        """Stand at a receptacle; False where it is nowhere."""
        places = [row[1] for row in self.state.facts.rows_with("receptacleatlocation", 0, receptacle)]
        if not places:
            return False
        if self.place not in places:
            self.moves.append(_Move("gotolocation", None, receptacle))
            self.place = places[0]
        return True

    def open(self, receptacle: str) -> None:
        """Have it open, where it can be."""
        facts = self.state.facts
        closed = ("openable", receptacle) in facts and ("opened", receptacle) not in facts
        if closed and receptacle not in self.opened:
            self.moves.append(_Move("openobject", None, receptacle))
            self.opened.add(receptacle)

    def take(self, thing: str) -> bool:
        """Have a thing in the hand; False where it cannot be got."""
        if self.held == thing:
            return True
        if self.held is not None and not self.drop(self.held):
            return False
        around = [row[1] for row in self.state.facts.rows_with("inreceptacle", 0, thing)]
        nearest = _nearest(self, around)
        if nearest is None or ("pickupable", thing) not in self.state.facts:
            return False
        self.go(nearest)
        self.open(nearest)
        self.moves.append(_Move("pickupobject", thing, nearest))
        self.held = thing
        return True

    def put(self, thing: str, receptacle: str) -> bool:
        """Put what is held somewhere; False where that is impossible."""
        if receptacle not in _takers(self.state, thing) or not self.go(receptacle):
            return False
        self.open(receptacle)
        self.moves.append(_Move("putobject", thing, receptacle))
        self.held = None
        return True

    def drop(self, thing: str) -> bool:
        """Put what is held anywhere."""
        nearest = _nearest(self, _takers(self.state, thing))
        return nearest is not None and self.put(thing, nearest)

    def change(self, thing: str, predicate: str) -> bool:
        """Make what is held clean, hot or cool; False where nothing does that."""
        makers = [
            (action.name, receptacle)
            for action in _adding(self.state, predicate)
            for receptacle in _receptacles(self.state, action, thing)
        ]
        nearest = _nearest(self, [receptacle for _, receptacle in makers])
        if nearest is None:
            return False
        self.go(nearest)
        self.moves.append(_Move(next(name for name, receptacle in makers if receptacle == nearest), thing, nearest))
        return True


def next_command(state: State) -> str | None:
    """The first command of the shortest way that is found; None where there is none, and at the goal."""
    if state.won:
        return None
    ways = [way.moves for goal in state.game.problem.goal for way in _ways(state, goal) if way.moves]
    return _command(state, min(ways, key=len)[0]) if ways else None


def _command(state: State, move: _Move) -> str | None:
    for command, operator in state.operators.items():
        if operator.action != move.action:
            continue
        values = dict(zip(state.game.rules.actions[operator.action].parameters, operator.arguments, strict=True))
        if move.thing in (None, values.get("?o")) and move.receptacle in (None, values.get("?r")):
            return command
    return None


def _ways(state: State, goal: Conjunction) -> Iterator[_Way]:
    """A way for every choice of the goal's variables, in every order of what is to be put down."""
    changing = state.game.rules.changing
    fixed = Conjunction(
        goal.variables, tuple(atom for atom in goal.positive if atom[0] not in changing), (), goal.different
    )
    open_atoms = [atom for atom in goal.positive if atom[0] in changing]
    involved = {part for atom in open_atoms for part in atom[1:]} | {name for pair in goal.different for name in pair}
    types = {name: kind for name, kind in fixed.variables.items() if name in involved or _occurs(name, fixed)}
    seen: set[tuple[Atom, ...]] = set()
    choices = query_of(Conjunction(types, fixed.positive, (), fixed.different), {}).solutions(state.facts, {})
    for values in islice(choices, _CHOICES):
        wanted = tuple((atom[0], *[values.get(part, part) for part in atom[1:]]) for atom in open_atoms)
        if wanted in seen:
            continue
        seen.add(wanted)
        placed = [atom for atom in wanted if atom[0] == "inreceptacle" and ("toggleable", atom[1]) not in state.facts]
        for order in permutations(placed):
            way = _way(state, order, wanted)
            if way is not None:
                yield way


def _occurs(name: str, condition: Conjunction) -> bool:
    return any(name in atom for atom in condition.positive)


def _way(state: State, placed: Sequence[Atom], wanted: Sequence[Atom]) -> _Way | None:
    agent, place = next(iter(state.facts.rows("atlocation")))
    way = _Way(state, place, next((row[1] for row in state.facts.rows_with("holds", 0, agent)), None))
    held = [atom[2] for atom in wanted if atom[0] == "holds"]
    for _, thing, receptacle in placed:
        changes = _changes(state, thing, wanted)
        if not changes and ("inreceptacle", thing, receptacle) in state.facts:
            continue
        if not (way.take(thing) and all(way.change(thing, each) for each in changes) and way.put(thing, receptacle)):
            return None
    for thing in held:
        if not (way.take(thing) and all(way.change(thing, each) for each in _changes(state, thing, wanted))):
            return None
    return way if _at_the_end(way, wanted) else None


def _changes(state: State, thing: str, wanted: Sequence[Atom]) -> list[str]:
    """What has to become true of one thing alone."""
    return [atom[0] for atom in wanted if len(atom) == 2 and atom[1] == thing and atom not in state.facts]


def _at_the_end(way: _Way, wanted: Sequence[Atom]) -> bool:
    """Stand where the goal says, and switch on what it says; False where that is impossible."""
    facts = way.state.facts
    for _, place in [atom[1:] for atom in wanted if atom[0] == "atlocation"]:
        here = [row[0] for row in facts.rows_with("receptacleatlocation", 1, place)]
        if not here or not way.go(here[0]):
            return False
        for _, thing in [atom for atom in wanted if len(atom) == 2 and ("toggleable", atom[1]) in facts]:
            around = [row[1] for row in facts.rows_with("inreceptacle", 0, thing) if row[1] in here]
            if not around:
                return False
            if ("istoggled", thing) not in facts:
                way.moves.append(_Move("toggleobject", thing, None))
    return True


def _nearest(way: _Way, receptacles: Sequence[str]) -> str | None:
    """The one that takes the fewest commands to reach and open, the first of equals; None where all are nowhere."""
    costs: list[tuple[int, str]] = []
    for receptacle in receptacles:
        trial = _Way(way.state, way.place, way.held, [], set(way.opened))
        if trial.go(receptacle):
            trial.open(receptacle)
            costs.append((len(trial.moves), receptacle))
    return min(costs)[1] if costs else None


def _adding(state: State, predicate: str) -> list[PlannedAction]:
    return [action for action in state.game.rules.actions.values() if predicate in action.adds]


def _takers(state: State, thing: str) -> list[str]:
    """Receptacles that a thing may be put into."""
    return _receptacles(state, state.game.rules.actions["putobject"], thing)


def _receptacles(state: State, action: PlannedAction, thing: str) -> list[str]:
    """Receptacles with which an action can be done to a thing, once one stands there and holds it."""
    known: Mapping[str, str] = {"?o": thing}
    found = {
        values["?r"]: None
        for query in action.lasting(state.game.rules.changing, frozenset(known))
        for values in query.solutions(state.facts, known)
        if "?r" in values
    }
    return list(found)
