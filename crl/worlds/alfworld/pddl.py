"""Reading PDDL: the domain (what can be done) and the problem (objects, first facts, goal) of a game file.

Only what ALFWorld's domain is made of is read: typed objects, actions with `and` / `or` / `not` / `exists` conditions
and with effects that may depend on a condition. Costs are passed over. Upper and lower case are one, as in every PDDL
planner. Anything else raises :class:`Unsupported`.

A condition, an `and` / `or` / `not` / `exists` tree, becomes a list of :class:`Conjunction`, which a query over facts
can answer; a state satisfies the condition where it satisfies one of them. Variables begin with `?`; those of an
`exists` get a name of their own, so that two of them with one name stay two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

Atom = tuple[str, ...]
"""A predicate and its arguments: objects, or variables (`?o`)."""
Tree = str | list["Tree"]
"""A parsed PDDL expression."""
_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_FLAT = re.compile(r"\s*\(([^()]*)\)\s*")
_ROOT = "object"


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


@dataclass(frozen=True)
class Effect:
    """One fact that an action adds or takes away."""

    atom: Atom
    adds: bool
    given: tuple[Conjunction, ...] | None
    """Alternatives of what has to hold before; None: nothing."""


@dataclass(frozen=True)
class Action:
    """What may be done, with variables in place of objects."""

    name: str
    parameters: Mapping[str, str]
    """Type of each parameter, in their order."""
    conditions: tuple[Conjunction, ...]
    effects: tuple[Effect, ...]


@dataclass(frozen=True, eq=False)
class Domain:
    """The rules that all games of a domain share. Two are equal where they are one object."""

    actions: tuple[Action, ...]
    subtypes: Mapping[str, frozenset[str]]
    """Each type with all types below it, itself included."""

    @property
    def changing(self) -> frozenset[str]:
        """Predicates that some action changes; all others are the same from beginning to end."""
        return frozenset(effect.atom[0] for action in self.actions for effect in action.effects)


@dataclass(frozen=True)
class Problem:
    """One game: its things, how they are at first, and what is to be reached."""

    objects: Mapping[str, str]
    """Type of each object."""
    facts: tuple[Atom, ...]
    goal: tuple[Conjunction, ...]


def parse(text: str) -> Tree:
    """The one expression of a text, in lower case. Raises Unsupported where a bracket is missing or left over."""
    root: list[Tree] = []
    open_lists = [root]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            inner: list[Tree] = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif token == ")":
            open_lists.pop()
            if not open_lists:
                raise Unsupported("a bracket is closed that was never opened")
        else:
            open_lists[-1].append(token)
    if len(open_lists) > 1:
        raise Unsupported("the text ends inside a bracket")
    if len(root) != 1 or isinstance(root[0], str):
        raise Unsupported(f"found {len(root)} expressions where one is expected")
    return root[0]


@lru_cache(maxsize=16)
def read_domain(text: str) -> Domain:
    """The domain of a PDDL text; games of one release share it. Raises Unsupported."""
    actions: list[Action] = []
    supertypes: dict[str, str] = {}
    for part in _parts(parse(text)):
        if part[0] == ":types":
            supertypes.update(typed_names(part[1:]))
        elif part[0] == ":action":
            actions.append(_action(part))
        elif part[0] in (":derived", ":durative-action"):
            raise Unsupported(f"found {part[0]}, which this engine does not play")
    if not actions:
        raise Unsupported("the domain has no action")
    return Domain(tuple(actions), _subtypes(supertypes))


def read_problem(text: str) -> Problem:
    """The problem of a PDDL text. Raises Unsupported."""
    head, marker, tail = _COMMENT.sub("", text).lower().partition("(:init")
    facts, rest = _flat_facts(tail) if marker else ([], "")
    # The facts are most of the text and are read in one pass; what is around them is parsed as usual.
    parts = {part[0]: part[1:] for part in _parts(parse(f"{head}{marker}{rest}"))}
    for name in (":objects", ":init", ":goal"):
        if name not in parts:
            raise Unsupported(f"the problem has no {name}")
    if len(parts[":goal"]) != 1:
        raise Unsupported("found more or less than one condition as the goal")
    objects = typed_names(parts[":objects"])
    facts += [atom_of(item) for item in parts[":init"] if not (isinstance(item, list) and item[:1] == ["="])]
    for atom in facts:
        for name in atom[1:]:
            if name not in objects:
                raise Unsupported(f"the fact {text_of(list(atom))} names {name!r}, which is no object of the problem")
    return Problem(objects, tuple(dict.fromkeys(facts)), tuple(alternatives(parts[":goal"][0])))


def _flat_facts(text: str) -> tuple[list[Atom], str]:
    """The atoms at the beginning of a text, and what follows them."""
    facts: list[Atom] = []
    at = 0
    while found := _FLAT.match(text, at):
        words = tuple(found[1].split())
        if not words or words[0] == "=":
            break
        facts.append(words)
        at = found.end()
    return facts, text[at:]


def _parts(tree: Tree) -> list[list[Tree]]:
    if isinstance(tree, str) or tree[:1] != ["define"]:
        raise Unsupported("the text does not begin with (define")
    return [part for part in tree[1:] if isinstance(part, list) and part]


def _subtypes(supertypes: Mapping[str, str]) -> dict[str, frozenset[str]]:
    below: dict[str, set[str]] = {name: {name} for name in [*supertypes, *supertypes.values(), _ROOT]}
    below[_ROOT].update(supertypes)
    for name in supertypes:
        above, seen = supertypes.get(name), {name}
        while above is not None and above not in seen:
            below[above].add(name)
            seen.add(above)
            above = supertypes.get(above)
    return {name: frozenset(names) for name, names in below.items()}


def _action(part: list[Tree]) -> Action:
    if len(part) < 2 or not isinstance(part[1], str):
        raise Unsupported("found an action without a name")
    keys = {str(key): value for key, value in zip(part[2::2], part[3::2], strict=False)}
    parameters = keys.get(":parameters", [])
    if isinstance(parameters, str):
        raise Unsupported(f"action {part[1]}: its parameters are no list")
    try:
        conditions = alternatives(keys.get(":precondition", []))
        effects = _effects(keys.get(":effect", []), None)
    except Unsupported as error:
        raise Unsupported(f"action {part[1]}: {error}") from error
    return Action(part[1], typed_names(parameters), tuple(conditions), tuple(effects))


def _effects(tree: Tree, given: tuple[Conjunction, ...] | None) -> list[Effect]:
    if isinstance(tree, str):
        raise Unsupported(f"found the word {tree!r} where an effect is expected")
    if not tree or tree[0] == "increase":
        return []
    if tree[0] == "and":
        return [effect for part in tree[1:] for effect in _effects(part, given)]
    if tree[0] == "when" and len(tree) == 3 and given is None:
        return _effects(tree[2], tuple(alternatives(tree[1])))
    if tree[0] == "not" and len(tree) == 2:
        return [Effect(atom_of(tree[1]), adds=False, given=given)]
    if tree[0] in ("when", "not", "forall", "assign", "decrease"):
        raise Unsupported(f"found an effect that this engine does not read: {text_of(tree)}")
    return [Effect(atom_of(tree), adds=True, given=given)]
