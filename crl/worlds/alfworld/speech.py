"""What is said: the text of a grammar's symbols in a state, what things are called, and the two wordings there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

from crl.worlds.alfworld.facts import Facts, Query
from crl.worlds.alfworld.grammar import Alternative, Expression, Given, Rule, Symbol, Symbols, Thing
from crl.worlds.alfworld.pddl import Unsupported

LISTS = ("list_empty", "list_separator", "list_last_separator")
"""The rules that write a list."""
_DEEPEST = 50
"""Rules within rules; a grammar that needs more never ends."""


class Speaker:
    """Turns symbols into text.

    Args:
        rules: the grammar's rules.
        things: what may be said of each object, by its id.
    """

    def __init__(self, rules: Mapping[str, tuple[Alternative, ...]], things: Mapping[str, Thing]) -> None:
        self._rules, self._things = rules, things

    def say(self, symbols: Symbols, facts: Facts, values: Mapping[str, str], depth: int = 0) -> str:
        """The text of symbols; `values`: the object of each variable. Raises Unsupported for an unknown rule."""
        return "".join([part for symbol in symbols for part in self._parts(symbol, facts, values, depth)])

    def _parts(self, symbol: Symbol, facts: Facts, values: Mapping[str, str], depth: int) -> list[str]:
        if isinstance(symbol, str):
            return [symbol]
        if isinstance(symbol, Rule):
            return [self._rule(symbol.name, facts, values, depth)]
        if isinstance(symbol, Expression):
            return [self._value(symbol, values)]
        ways = [values] if symbol.given is None else _ordered(symbol.given, facts, values)
        texts = [part for way in ways for part in self._parts(symbol.symbol, facts, way, depth)]
        return [self._listed(texts, facts, values, depth)] if symbol.listed else texts

    def _value(self, symbol: Expression, values: Mapping[str, str]) -> str:
        try:
            return str(symbol.evaluate({name: self._things[value] for name, value in values.items()}))
        except KeyError as error:
            raise Unsupported(f"the grammar speaks of {error.args[0]!r}, which is not known there") from error

    def _rule(self, name: str, facts: Facts, values: Mapping[str, str], depth: int) -> str:
        if depth > _DEEPEST:
            raise Unsupported(f"the rule {name!r} of the grammar calls itself without an end")
        for alternative in self._rules.get(name, ()):
            if alternative.given is None or _query(alternative.given, frozenset(values)).holds(facts, values):
                return self.say(alternative.symbols, facts, values, depth + 1)
        raise Unsupported(f"the grammar has no rule {name!r}, or none of its alternatives holds")

    def _listed(self, texts: list[str], facts: Facts, values: Mapping[str, str], depth: int) -> str:
        empty, between, before_last = LISTS
        if not texts:
            return self._rule(empty, facts, values, depth)
        if len(texts) == 1:
            return texts[0]
        separator = self._rule(between, facts, values, depth)
        last = self._rule(before_last, facts, values, depth)
        return separator.join(texts[:-1]) + last + texts[-1]


def _ordered(given: Given, facts: Facts, values: Mapping[str, str]) -> list[dict[str, str]]:
    """Every way to satisfy a condition, in the order of the ids that its atoms name."""
    names = [name for atom in given.atoms for name in atom[1:]]
    ways = _query(given, frozenset(values)).solutions(facts, values)
    return sorted(ways, key=lambda way: [way[name] for name in names])


@lru_cache(maxsize=512)
def _query(given: Given, known: Collection[str]) -> Query:
    types = {name: kind for name, kind in given.types if name not in known}
    return Query(given.atoms, types=types, known=known, distinct=True)


_CODED = (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ","))


def names_of(ids: Iterable[str]) -> dict[str, str]:
    """The name of every id: `Cabinet_bar__minus_00_dot_51…` is `cabinet 3`.

    Things of one class are numbered from 1 against the order of their ids, as the `alfworld` package does it: the last
    id of a class is its number 1. A basin has an id that ends with the name of its sink or bathtub's basin, and is a
    class of its own. An id without a position has no number, and a blank after its name.
    """
    ordered = sorted(ids)
    classes = {each: _class(each) for each in ordered}
    left = Counter(name for name in classes.values() if name is not None)
    names: dict[str, str] = {}
    for each in ordered:
        name = classes[each]
        if name is None:
            names[each] = f"{_decoded(each)} "
            continue
        names[each] = f"{name} {left[name]}"
        left[name] -= 1
    return names


def _class(each: str) -> str | None:
    name, bar, _ = each.partition("_bar_")
    if not bar:
        return None
    return f"{name}basin" if "basin" in each else name


def _decoded(each: str) -> str:
    for code, sign in _CODED:
        each = each.replace(code, sign)
    return each


Wording = Literal["put", "move", "file"]

_ARRIVE = "You arrive at {%s.name}. #examineReceptacle.feedback#"
_TEMPLATES: Mapping[str, str] = {"put": "put {o} in/on {r}", "move": "move {o} to {r}"}
_RULES: Mapping[str, Mapping[str, str]] = {
    "put": {
        "PutObject.feedback": "You put the {o.name} in/on the {r.name}.",
        "GotoLocation.feedback": _ARRIVE % "lend",
    },
    "move": {"PutObject.feedback": "You move the {o.name} to the {r.name}.", "GotoLocation.feedback": _ARRIVE % "r"},
}
_HELP: Mapping[str, str] = {"put": "put (object) in/on (receptacle):", "move": "move (object) to (receptacle):"}


def worded(
    rules: Mapping[str, Any], actions: Mapping[str, tuple[str, str]], wording: Wording
) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Rules and actions of a grammar (:func:`crl.worlds.alfworld.grammar.read_rules`) in a wording: how putting
    something down is called, and what is said on arrival.

    Data of release 2.1.1 says `put apple 1 in/on fridge 1` and `You arrive at loc 3.`; since `alfworld` 0.4 the grammar
    says `move apple 1 to fridge 1` and `You arrive at fridge 1.` Which one a file has, depends on the release that
    wrote it. The paper's evaluation, like most others, has the older one.
    """
    rules, actions = dict(rules), dict(actions)
    if wording == "file":
        return rules, actions
    if "putobject" in actions:
        actions["putobject"] = (_TEMPLATES[wording], actions["putobject"][1])
    for name, text in _RULES[wording].items():
        if name in rules:
            rules[name] = [{"rhs": text}]
    other = _HELP["move" if wording == "put" else "put"]
    if "help.feedback" in rules:
        rules["help.feedback"] = [
            {**each, "rhs": each["rhs"].replace(other, _HELP[wording])} for each in rules["help.feedback"]
        ]
    return rules, actions
