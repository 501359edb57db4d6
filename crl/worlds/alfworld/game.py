"""One game and its states: what can be done, what is said to it, and whether the task is done.

A :class:`Game` is compiled from the texts of a game file and never changes; a :class:`State` is one play of it. Both
equal TextWorld's play of the same file, word for word: `tests/worlds/alfworld` compares them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from crl.worlds.alfworld.facts import Arguments, Facts, Query
from crl.worlds.alfworld.grammar import Grammar, Repeated, Rule, Saying, Symbols, Thing, symbols_of
from crl.worlds.alfworld.pddl import Domain, Problem, Unsupported
from crl.worlds.alfworld.rules import query_of, rules_of
from crl.worlds.alfworld.speech import LISTS, Speaker, names_of

_TASK = "Your task is to:"
NOTHING = "Nothing happens."
"""What TextWorld answers to a command that is none."""


@dataclass(frozen=True)
class Operator:
    """An action with its arguments."""

    action: str
    arguments: Arguments


class Game:
    """The rules, the things and the beginning of one game. Raises Unsupported where they do not fit together."""

    def __init__(self, domain: Domain, problem: Problem, grammar: Grammar) -> None:
        self.problem = problem
        self.rules = rules_of(domain)
        lacking = sorted(self.rules.actions.keys() - grammar.actions.keys())
        if lacking:
            raise Unsupported(f"the grammar has no words for the actions {', '.join(lacking)}")
        spoken = [each for name in self.rules.actions for each in _said(grammar.actions[name])]
        _check_rules(grammar, [symbols_of("#intro# #task#"), *spoken])
        self.grammar = grammar
        self.names: Mapping[str, str] = names_of({name for atom in problem.facts for name in atom[1:]})
        self.speaker = Speaker(
            grammar.rules, {each: Thing(each, name, problem.objects[each]) for each, name in self.names.items()}
        )
        self.goal: list[Query] = [query_of(each, {}) for each in problem.goal]
        self._words = _Words(self)
        self._first = Facts(_kinds(domain, problem), self.rules.changing)
        for atom in problem.facts:
            self._first.add(atom)

    def start(self) -> State:
        """A new play from the beginning."""
        return State(self, self._first.copy())

    @cached_property
    def task(self) -> str:
        """What is asked for, without the words that introduce it."""
        text = self.speaker.say(symbols_of("#task#"), self._first, {})
        return text.removeprefix(_TASK).strip()

    @property
    def content(self) -> str:
        """The task and all that is true at the beginning, by the names that a player reads; equal for equal levels."""
        facts = (" ".join([atom[0], *[self.names[each] for each in atom[1:]]]) for atom in self.problem.facts)
        return "\n".join([self.task, *sorted(facts)])

    def command(self, operator: Operator, facts: Facts) -> str:
        """What doing this is called."""
        return self._words.command(operator, facts)


class State:
    """One play of a game."""

    def __init__(self, game: Game, facts: Facts) -> None:
        self.game, self.facts = game, facts
        self.text = game.speaker.say(symbols_of("#intro#"), facts, {})
        """What was said last; at first the introduction."""
        self._operators: dict[str, Operator] | None = None

    @property
    def operators(self) -> Mapping[str, Operator]:
        """What can be done, by command, in the order of the commands."""
        if self._operators is None:
            found: dict[str, Operator] = {}
            for name, action in self.game.rules.actions.items():
                # Where two operators have one command (a lamp on two receptacles), the first is done.
                for arguments in sorted(action.possible(self.facts)):
                    operator = Operator(name, arguments)
                    found.setdefault(self.game.command(operator, self.facts), operator)
            self._operators = dict(sorted(found.items()))
        return self._operators

    @property
    def commands(self) -> tuple[str, ...]:
        """The admissible commands, sorted."""
        return tuple(self.operators)

    @property
    def won(self) -> bool:
        """Whether the goal is reached."""
        return any(query.holds(self.facts, {}) for query in self.game.goal)

    def do(self, command: str) -> str:
        """What is said to a command. One that is not admissible changes nothing."""
        operator = self.operators.get(command.strip())
        if operator is None:
            self.text = NOTHING
            return self.text
        action = self.game.rules.actions[operator.action]
        action.apply(self.facts, operator.arguments)
        self._operators = None
        values = dict(zip(action.parameters, operator.arguments, strict=True))
        self.text = self.game.speaker.say(self.game.grammar.actions[operator.action].feedback, self.facts, values)
        return self.text


class _Words:
    """The commands of operators. Those whose words follow from facts that never change are kept."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._kept: dict[Operator, str] = {}
        self._keeps = {
            name: _is_constant(saying.template, game.rules.changing) for name, saying in game.grammar.actions.items()
        }

    def command(self, operator: Operator, facts: Facts) -> str:
        kept = self._kept.get(operator)
        if kept is not None:
            return kept
        action = self._game.rules.actions[operator.action]
        values = dict(zip(action.parameters, operator.arguments, strict=True))
        text = self._game.speaker.say(self._game.grammar.actions[operator.action].template, facts, values)
        if self._keeps[operator.action]:
            self._kept[operator] = text
        return text


def _is_constant(template: Symbols, changing: frozenset[str]) -> bool:
    """Whether the text of a template is the same in every state."""
    for symbol in template:
        if isinstance(symbol, Rule) or (isinstance(symbol, Repeated) and isinstance(symbol.symbol, Rule)):
            return False
        if (
            isinstance(symbol, Repeated)
            and symbol.given is not None
            and {atom[0] for atom in symbol.given.atoms} & changing
        ):
            return False
    return True


def _said(saying: Saying) -> tuple[Symbols, Symbols]:
    return saying.template, saying.feedback


def _check_rules(grammar: Grammar, said: list[Symbols]) -> None:
    """Raise Unsupported where what may be said needs a rule that the grammar lacks."""
    waiting, seen = list(said), set[str]()
    while waiting:
        for symbol in waiting.pop():
            listed = LISTS if isinstance(symbol, Repeated) and symbol.listed else ()
            inner = symbol.symbol if isinstance(symbol, Repeated) else symbol
            for name in [*listed, *([inner.name] if isinstance(inner, Rule) else [])]:
                if name not in grammar.rules:
                    raise Unsupported(f"the grammar has no rule {name!r}")
                if name not in seen:
                    seen.add(name)
                    waiting += [alternative.symbols for alternative in grammar.rules[name]]


def _kinds(domain: Domain, problem: Problem) -> dict[str, frozenset[str]]:
    """The objects of each type, those of its subtypes included."""
    exact: dict[str, set[str]] = defaultdict(set)
    for name, kind in problem.objects.items():
        exact[kind].add(name)
    return {
        kind: frozenset(name for below in subtypes for name in exact[below])
        for kind, subtypes in domain.subtypes.items()
    }
