"""Facts of a state, found by predicate and by each argument, and queries over them.

A query is a conjunction of atoms whose variables are to be filled in. It is planned once, for the variables that are
known when it is asked: each step then looks into the smallest part of the facts that its known arguments allow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from crl.worlds.alfworld.pddl import Atom

Arguments = tuple[str, ...]
Rows = dict[Arguments, None]
"""Arguments of the facts of one predicate, in the order in which they became true. (A dict keeps an order, a set of
strings has another one in every process.)"""

_NONE: Rows = {}
_NOTHING: frozenset[str] = frozenset()


class Facts:
    """Ground atoms, and the objects that there are.

    Args:
        kinds: the objects of each type.
        changing: predicates whose facts may change. A copy shares all others.
    """

    def __init__(self, kinds: Mapping[str, frozenset[str]], changing: Collection[str] = ()) -> None:
        self._kinds = kinds
        self._rows: dict[str, Rows] = {}
        self._by_argument: dict[str, dict[tuple[int, str], Rows]] = {}
        self._changing = frozenset(changing)

    def copy(self) -> Facts:
        """The same facts; those that never change are shared."""
        other = Facts(self._kinds, self._changing)
        other._rows, other._by_argument = dict(self._rows), dict(self._by_argument)
        for predicate in self._changing & self._rows.keys():
            other._rows[predicate] = self._rows[predicate].copy()
            index = self._by_argument[predicate]
            other._by_argument[predicate] = {key: rows.copy() for key, rows in index.items()}
        return other

    def objects(self, kind: str) -> frozenset[str]:
        """The objects of a type; none of a type that is unknown."""
        return self._kinds.get(kind, _NOTHING)

    def add(self, atom: Atom) -> None:
        """Make an atom true."""
        predicate, arguments = atom[0], atom[1:]
        self._rows.setdefault(predicate, {})[arguments] = None
        index = self._by_argument.setdefault(predicate, {})
        for key in enumerate(arguments):
            index.setdefault(key, {})[arguments] = None

    def discard(self, atom: Atom) -> None:
        """Make an atom false."""
        predicate, arguments = atom[0], atom[1:]
        rows = self._rows.get(predicate, _NONE)
        if arguments in rows:
            del rows[arguments]
            for key in enumerate(arguments):
                del self._by_argument[predicate][key][arguments]

    def __contains__(self, atom: Atom) -> bool:
        return atom[1:] in self._rows.get(atom[0], _NONE)

    def rows(self, predicate: str) -> Rows:
        """Arguments of all facts of a predicate."""
        return self._rows.get(predicate, _NONE)

    def rows_with(self, predicate: str, position: int, value: str) -> Rows:
        """Arguments of the facts of a predicate that have a value at a position."""
        index = self._by_argument.get(predicate)
        return _NONE if index is None else index.get((position, value), _NONE)


@dataclass(frozen=True)
class _Step:
    """One atom of a planned query."""

    predicate: str
    known: tuple[tuple[int, str], ...]
    """Positions whose value is known by then, with the constant or variable that says it."""
    new: tuple[tuple[int, str], ...]
    """Positions whose variable is filled in here."""
    again: tuple[tuple[int, str], ...]
    """Positions that repeat a variable that is filled in here."""


class Query:
    """Positive and negative atoms, and pairs that differ, planned for the variables that are known at first.

    Args:
        types: the type of each variable that the query fills in; others must be known.
        known: variables whose value is given when the query is asked.
        narrow: predicates with few facts at any time: they are looked at first.
        distinct: two variables are never one object, as in TextWorld's grammars.
    """

    def __init__(
        self,
        positive: Sequence[Atom],
        *,
        types: Mapping[str, str],
        known: Collection[str] = (),
        negative: Sequence[Atom] = (),
        different: Sequence[tuple[str, str]] = (),
        narrow: Collection[str] = (),
        distinct: bool = False,
    ) -> None:
        self._negative, self._different, self._distinct = tuple(negative), tuple(different), distinct
        self._types = dict(types)
        self._steps: list[_Step] = []
        bound, rest = set(known), list(positive)
        while rest:
            atom = max(rest, key=lambda each: _ease(each, bound, narrow))
            rest.remove(atom)
            self._steps.append(_step(atom, bound))
            bound.update(_variables(atom))
        # What no atom fills in may be anything of its type.
        self._free = tuple(name for name in types if name not in bound)

    def solutions(self, facts: Facts, known: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Every way to fill in the variables, with what was known."""
        return self._solve(facts, dict(known), 0)

    def holds(self, facts: Facts, known: Mapping[str, str]) -> bool:
        """Whether there is one."""
        return next(self._solve(facts, dict(known), 0), None) is not None

    def _solve(self, facts: Facts, values: dict[str, str], depth: int) -> Iterator[dict[str, str]]:
        if depth == len(self._steps):
            yield from self._fill_free(facts, values, 0)
            return
        step = self._steps[depth]
        for row in _candidates(step, facts, values):
            filled = self._matched(step, row, facts, values)
            if filled is not None:
                yield from self._solve(facts, filled, depth + 1)

    def _matched(self, step: _Step, row: Arguments, facts: Facts, values: dict[str, str]) -> dict[str, str] | None:
        for position, name in step.known:
            if row[position] != values.get(name, name):
                return None
        if not step.new:
            return values
        filled = dict(values)
        for position, name in step.new:
            value = row[position]
            if value not in facts.objects(self._types[name]) or (self._distinct and value in filled.values()):
                return None
            filled[name] = value
        for position, name in step.again:
            if row[position] != filled[name]:
                return None
        return filled

    def _fill_free(self, facts: Facts, values: dict[str, str], at: int) -> Iterator[dict[str, str]]:
        if at < len(self._free):
            name = self._free[at]
            for value in sorted(facts.objects(self._types[name])):
                yield from self._fill_free(facts, {**values, name: value}, at + 1)
        elif all(values.get(a, a) != values.get(b, b) for a, b in self._different) and not any(
            (atom[0], *[values.get(part, part) for part in atom[1:]]) in facts for atom in self._negative
        ):
            yield values


def _candidates(step: _Step, facts: Facts, values: Mapping[str, str]) -> list[Arguments]:
    if not step.known:
        return list(facts.rows(step.predicate))
    if not step.new and not step.again:
        row = tuple(values.get(name, name) for _, name in step.known)
        return [row] if row in facts.rows(step.predicate) else []
    fewest: Rows | None = None
    for position, name in step.known:
        rows = facts.rows_with(step.predicate, position, values.get(name, name))
        if fewest is None or len(rows) < len(fewest):
            fewest = rows
    return list(fewest or ())


def _variables(atom: Atom) -> list[str]:
    return [part for part in atom[1:] if part.startswith("?")]


def _ease(atom: Atom, bound: Collection[str], narrow: Collection[str]) -> tuple[bool, bool, float, int]:
    """How few rows an atom is likely to have: nothing new first, then predicates with few facts at any time."""
    new = [part for part in _variables(atom) if part not in bound]
    arguments = len(atom) - 1
    known = arguments - len(new)
    return not new, atom[0] in narrow, known / arguments if arguments else 1.0, -len(new)


def _step(atom: Atom, bound: Collection[str]) -> _Step:
    known: list[tuple[int, str]] = []
    new: list[tuple[int, str]] = []
    again: list[tuple[int, str]] = []
    for position, part in enumerate(atom[1:]):
        if not part.startswith("?") or part in bound:
            known.append((position, part))
        elif part in [name for _, name in new]:
            again.append((position, part))
        else:
            new.append((position, part))
    return _Step(atom[0], tuple(known), tuple(new), tuple(again))
