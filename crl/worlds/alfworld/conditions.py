"""Conditions of PDDL as alternatives of conjunctions: what a query over facts can answer.

An `and` / `or` / `not` / `exists` tree becomes a list of :class:`Conjunction`; a state satisfies the condition where it
satisfies one of them. Variables begin with `?`; those of an `exists` get a name of their own, so that two of them with
one name stay two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

Atom = tuple[str, ...]
"""A predicate and its arguments: objects, or variables (`?o`)."""
Tree = str | list["Tree"]
"""A parsed PDDL expression."""


class Unsupported(ValueError):
    """A PDDL expression that is malformed, or of a kind that this engine does not play."""


@dataclass(frozen=True)
class Conjunction:
    """Literals that hold together, for some objects in place of the variables."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Type of each variable that `exists` adds."""
    positive: tuple[Atom, ...] = ()
    negative: tuple[Atom, ...] = ()
    """Atoms that do not hold; all their variables occur elsewhere or are parameters."""
    different: tuple[tuple[str, str], ...] = ()
    """Pairs that are not one object."""

    def joined(self, other: Conjunction) -> Conjunction:
        """What both say."""
        return Conjunction(
            {**self.variables, **other.variables},
            self.positive + other.positive,
            self.negative + other.negative,
            self.different + other.different,
        )


def typed_names(items: list[Tree], *, default: str = "object") -> dict[str, str]:
    """Names with their types, from `a b - type c`. Raises Unsupported.

    A comma is a part of the word that it is written at, as for Fast Downward: `?l - location, ?r - receptacle` asks for
    an `?l` of the type `location,`, which nothing is. ALFWorld's domain says so of examining an object; therefore only
    what is held can be examined.
    """
    types: dict[str, str] = {}
    waiting: list[str] = []
    rest = iter(items)
    for item in rest:
        if not isinstance(item, str):
            raise Unsupported(f"found a list in a list of names: {text_of(item)}")
        if item == "-":
            kind = next(rest, None)
            if not isinstance(kind, str):
                raise Unsupported("a list of names ends with a dash, or with a type that is no name")
            types.update(dict.fromkeys(waiting, kind))
            waiting = []
        else:
            waiting.append(item)
    types.update(dict.fromkeys(waiting, default))
    return types


def text_of(tree: Tree) -> str:
    """An expression as PDDL, shortened: for errors."""
    text = tree if isinstance(tree, str) else "(" + " ".join(map(text_of, tree)) + ")"
    return text if len(text) <= 80 else text[:77] + "..."


def alternatives(tree: Tree) -> list[Conjunction]:
    """The condition in disjunctive normal form. Raises Unsupported."""
    return _Reader().read(tree, {}, holds=True)


class _Reader:
    def __init__(self) -> None:
        self._numbers: Iterator[int] = count(1)

    def read(self, tree: Tree, names: Mapping[str, str], *, holds: bool) -> list[Conjunction]:
        if isinstance(tree, str):
            raise Unsupported(f"found the word {tree!r} where a condition is expected")
        if not tree:
            return [Conjunction()] if holds else []
        head, parts = tree[0], tree[1:]
        if head in ("and", "or"):
            branches = [self.read(part, names, holds=holds) for part in parts]
            return _all_of(branches) if (head == "and") is holds else [each for branch in branches for each in branch]
        if head == "not" and len(parts) == 1:
            return self.read(parts[0], names, holds=not holds)
        if head == "exists" and len(parts) == 2 and isinstance(parts[0], list) and holds:
            return self._exists(parts[0], parts[1], names)
        if head in ("not", "exists", "forall", "imply", "when", "preference"):
            raise Unsupported(f"found a condition that this engine does not read: {text_of(tree)}")
        return [self._literal(atom_of(tree, names), holds=holds)]

    def _exists(self, declared: list[Tree], body: Tree, names: Mapping[str, str]) -> list[Conjunction]:
        types = typed_names(declared)
        renamed = {name: f"{name}'{next(self._numbers)}" for name in types}
        own = Conjunction({renamed[name]: kind for name, kind in types.items()})
        return [own.joined(each) for each in self.read(body, {**names, **renamed}, holds=True)]

    def _literal(self, atom: Atom, *, holds: bool) -> Conjunction:
        if atom[0] != "=":
            return Conjunction(positive=(atom,)) if holds else Conjunction(negative=(atom,))
        if holds or len(atom) != 3:
            raise Unsupported(f"found an equation that this engine does not read: {text_of(list(atom))}")
        return Conjunction(different=((atom[1], atom[2]),))


def atom_of(tree: Tree, names: Mapping[str, str] | None = None) -> Atom:
    """An atom, its variables renamed. Raises Unsupported where it is none."""
    if not isinstance(tree, list) or not tree:
        raise Unsupported(f"found {text_of(tree)} where an atom is expected")
    words: list[str] = []
    for part in tree:
        if not isinstance(part, str):
            raise Unsupported(f"found {text_of(tree)} where an atom is expected")
        words.append((names or {}).get(part, part))
    return tuple(words)


def _all_of(branches: list[list[Conjunction]]) -> list[Conjunction]:
    result = [Conjunction()]
    for branch in branches:
        result = [left.joined(right) for left in result for right in branch]
    return result
