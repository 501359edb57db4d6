"""The actions of a domain, ready to be asked what can be done in a state and what it changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from crl.worlds.alfworld.facts import Arguments, Facts, Query
from crl.worlds.alfworld.pddl import Action, Atom, Conjunction, Domain

NARROW = frozenset({"atlocation", "holds", "holdsany"})
"""Predicates of which few facts hold at any time: where the agent is, and what it holds. Only speed depends on them."""


def query_of(condition: Conjunction, types: Mapping[str, str]) -> Query:
    """The query of a conjunction; `types`: the type of each variable that it does not declare itself."""
    return Query(
        condition.positive,
        types={**types, **condition.variables},
        negative=condition.negative,
        different=condition.different,
        narrow=NARROW,
    )


@dataclass(frozen=True)
class Rules:
    """What a domain allows."""

    actions: Mapping[str, PlannedAction]
    changing: frozenset[str]
    """Predicates whose facts may change, with `not_` before those that an action takes away."""


class PlannedAction:
    """An action whose conditions are planned queries."""

    def __init__(self, action: Action) -> None:
        self.name = action.name
        self.parameters = action.parameters
        self._conditions = [(query_of(each, action.parameters), each) for each in action.conditions]
        self._effects = [
            (effect.atom, effect.adds, _given(effect.given, action.parameters)) for effect in action.effects
        ]
        self._may_idle = [_may_idle(action, condition) for condition in action.conditions]

    @property
    def adds(self) -> frozenset[str]:
        """Predicates of the facts that it may add."""
        return frozenset(atom[0] for atom, adds, _ in self._effects if adds)

    def lasting(self, changing: Collection[str], known: frozenset[str]) -> list[Query]:
        """Its conditions without what may change: what must be so in any state. `known`: parameters that are given."""
        return [
            Query(
                [atom for atom in condition.positive if atom[0] not in changing],
                types={name: kind for name, kind in self._types(condition).items() if name not in known},
                known=known,
            )
            for _, condition in self._conditions
        ]

    def _types(self, condition: Conjunction) -> dict[str, str]:
        """Types of the variables that its unchanging part may name."""
        named = {part for atom in condition.positive for part in atom[1:]}
        return {name: kind for name, kind in {**self.parameters, **condition.variables}.items() if name in named}

    def possible(self, facts: Facts) -> Iterator[Arguments]:
        """The arguments with which the action can be done, each once.

        What would change nothing, whatever the state, is not possible: a planner drops it (going to where one is).
        """
        seen: set[Arguments] = set()
        for (query, condition), may_idle in zip(self._conditions, self._may_idle, strict=True):
            for values in query.solutions(facts, {}):
                arguments = tuple(values[name] for name in self.parameters)
                if arguments in seen or (may_idle and self._idle(condition, values)):
                    continue
                seen.add(arguments)
                yield arguments

    def _idle(self, condition: Conjunction, values: Mapping[str, str]) -> bool:
        held = {_ground(atom, values) for atom in condition.positive}
        missing = {_ground(atom, values) for atom in condition.negative}
        added = {_ground(atom, values) for atom, adds, _ in self._effects if adds}
        removed = {_ground(atom, values) for atom, adds, _ in self._effects if not adds} - added
        return added <= held and removed <= missing

    def apply(self, facts: Facts, arguments: Arguments) -> None:
        """Change the facts as the action does.

        What is taken away is kept as `not_f(x)` until it is added again: TextWorld's grammars ask for that, and not
        for what was never true. (TextWorld notes both outcomes of an effect that depends on a condition, the real one
        and the other; here only the real one is noted. Nothing in ALFWorld's grammar asks for such a fact.)
        """
        values = dict(zip(self.parameters, arguments, strict=True))
        changes = [
            (_ground(atom, values), adds)
            for atom, adds, given in self._effects
            if given is None or any(query.holds(facts, values) for query in given)
        ]
        added = {atom for atom, adds in changes if adds}
        for atom, adds in changes:
            opposite = (f"not_{atom[0]}", *atom[1:])
            if adds:
                facts.add(atom)
                facts.discard(opposite)
            elif atom not in added:
                facts.discard(atom)
                facts.add(opposite)


@lru_cache(maxsize=16)
def rules_of(domain: Domain) -> Rules:
    """The rules of a domain, planned once."""
    removable = {f"not_{effect.atom[0]}" for action in domain.actions for effect in action.effects}
    return Rules({action.name: PlannedAction(action) for action in domain.actions}, domain.changing | removable)


def _ground(atom: Atom, values: Mapping[str, str]) -> Atom:
    return (atom[0], *[values.get(part, part) for part in atom[1:]])


def _given(given: Collection[Conjunction] | None, parameters: Mapping[str, str]) -> list[Query] | None:
    if given is None:
        return None
    return [
        Query(
            each.positive,
            types=each.variables,
            known=frozenset(parameters),
            negative=each.negative,
            different=each.different,
        )
        for each in given
    ]


def _may_idle(action: Action, condition: Conjunction) -> bool:
    """Whether some arguments may make the action one that changes nothing; most actions have none."""
    if any(effect.given is not None for effect in action.effects):
        return False
    held = {atom[0] for atom in condition.positive}
    missing = {atom[0] for atom in condition.negative}
    added = {effect.atom[0] for effect in action.effects if effect.adds}
    return all(
        effect.atom[0] in held if effect.adds else effect.atom[0] in missing | added for effect in action.effects
    )
