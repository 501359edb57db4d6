"""What is said: the text of a grammar's symbols in a state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from crl.worlds.alfworld.conditions import Unsupported
from crl.worlds.alfworld.facts import Facts, Query
from crl.worlds.alfworld.grammar import Alternative, Expression, Given, Rule, Symbol, Symbols, Thing

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
