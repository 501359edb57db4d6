"""The grammar of a game file (TextWorld's `twl2`): what commands are called, and what is said to them.

A rule has alternatives; the first whose condition holds is taken. Its text is made of symbols:

    #name#               another rule
    {o.name}             an expression about the things at hand
    {text | condition}   the text once for every way to satisfy a condition
    [{text | condition}] the same as a list with separators (rules list_separator, list_last_separator, list_empty)

Like TextWorld's parser, this one stops at the first character that begins no symbol and drops the rest, and passes over
blanks at the beginning of a text. Conditions are asked of the facts that the text of an action knows: `not_f(x)` holds
only after an action has taken `f(x)` away.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from crl.worlds.alfworld.pddl import Atom, Unsupported

_BLOCK = r'"""(?P<{0}>.*?)"""\s*;'
_PART = re.compile(
    r"grammar\s*::\s*" + _BLOCK.format("grammar") + r"|action\s+(?P<action>\w+)\s*\{(?P<body>(?:" + '"""'
    r'.*?"""|"(?:[^"\\]|\\.)*"|[^"}])*)\}',
    re.DOTALL,
)
_OWN = re.compile(r"grammar\s*::\s*" + _BLOCK.format("own"), re.DOTALL)
_TEXT = r'\s*::\s*"((?:[^"\\]|\\.)*)"\s*;'
_TEMPLATE, _FEEDBACK = re.compile("template" + _TEXT), re.compile("feedback" + _TEXT)
_LITERAL = re.compile(r'[^;|"<>\[\]#{}]+')
_NAME = re.compile(r"#([\w()/!<>\-\s,.]+)#")
_CONDITION = re.compile(r"\s*(\w+)\(([^()]*)\)\s*")

Evaluate = Callable[[Mapping[str, "Thing"]], Any]


@dataclass(frozen=True)
class Thing:
    """What a text may say of an object."""

    id: str
    name: str
    type: str
    definite: str = "the"
    indefinite: str = "a"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Given:
    """A conjunction of atoms whose variables have types."""

    atoms: tuple[Atom, ...]
    types: tuple[tuple[str, str], ...]
    """Each variable with its type."""


@dataclass(frozen=True)
class Rule:
    """The name of a rule whose text stands here."""

    name: str


@dataclass(frozen=True)
class Expression:
    """A value that is computed from the things at hand."""

    evaluate: Evaluate


@dataclass(frozen=True)
class Repeated:
    """A symbol once for every way to satisfy a condition; `listed`: with separators."""

    symbol: Rule | Expression
    given: Given | None
    listed: bool


Symbol = str | Rule | Expression | Repeated
Symbols = tuple[Symbol, ...]


@dataclass(frozen=True)
class Alternative:
    """A text, and when it is said."""

    given: Given | None
    symbols: Symbols


@dataclass(frozen=True)
class Saying:
    """How an action is called, and what is said after it."""

    template: Symbols
    feedback: Symbols


@dataclass(frozen=True)
class Grammar:
    """All rules and actions of a grammar. Names of actions are in lower case."""

    rules: Mapping[str, tuple[Alternative, ...]]
    actions: Mapping[str, Saying]


@lru_cache(maxsize=64)
def read_rules(text: str) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Rules (JSON: name to alternatives) and actions (name to template and feedback) of a grammar, unparsed.

    Raises Unsupported.
    """
    rules: dict[str, Any] = {}
    actions: dict[str, tuple[str, str]] = {}
    for part in _PART.finditer(text):
        if part["grammar"] is not None:
            rules.update(_json(part["grammar"]))
            continue
        body = part["body"]
        own = _OWN.search(body)
        if own is not None:
            # TextWorld takes a line that begins with # for a comment, in the grammar of an action only.
            lines = (line for line in own["own"].splitlines() if not line.lstrip().startswith("#"))
            rules.update(_json("\n".join(lines)))
        outside = _OWN.sub("", body)
        template, feedback = _TEMPLATE.search(outside), _FEEDBACK.search(outside)
        if template is None or feedback is None:
            raise Unsupported(f"the grammar's action {part['action']} lacks a template or a feedback")
        actions[part["action"].lower()] = template[1], feedback[1]
    if not rules or not actions:
        raise Unsupported("the grammar has no rules or no actions")
    return rules, actions


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Unsupported(f"a part of the grammar is no JSON: {error}") from error
    shaped = isinstance(found, dict) and all(
        isinstance(rules, list) and rules and all(isinstance(rule.get("rhs"), str) for rule in rules)
        for rules in found.values()
    )
    if not shaped:
        raise Unsupported("a part of the grammar is no mapping of rules to alternatives with a `rhs`")
    return dict(found)


def alternatives_of(rules: list[dict[str, Any]]) -> tuple[Alternative, ...]:
    """The alternatives of a rule. Raises Unsupported."""
    return tuple(Alternative(_given(str(rule.get("condition", ""))), symbols_of(rule["rhs"])) for rule in rules)


@lru_cache(maxsize=2048)
def symbols_of(text: str) -> Symbols:
    """The symbols of a text. Raises Unsupported."""
    text = text.replace("\\n", "\n").lstrip()
    symbols: list[Symbol] = []
    at = 0
    while at < len(text):
        if text[at] == "#":
            found = _NAME.match(text, at)
            if found is None:
                break
            symbols.append(Rule(found[1]))
            at = found.end()
        elif text[at] in "[{":
            closing = "}]" if text[at] == "[" else "}"
            end = text.find(closing, at)
            body = text[at + len(closing) : end]
            if end < 0 or text[at : at + len(closing)] not in ("[{", "{"):
                break
            symbols.append(_each(body, listed=text[at] == "["))
            at = end + len(closing)
        else:
            literal = _LITERAL.match(text, at)
            if literal is None:
                break
            symbols.append(literal[0])
            at = literal.end()
    return tuple(symbols)


def _each(body: str, *, listed: bool) -> Repeated | Rule | Expression:
    text, bar, condition = body.partition("|")
    named = _NAME.fullmatch(text.strip())
    symbol = Rule(named[1]) if named else Expression(_expression(text.strip()))
    if not bar and not listed:
        return symbol
    return Repeated(symbol, _given(condition) if bar else None, listed)


@lru_cache(maxsize=1024)
def _given(condition: str) -> Given | None:
    """A condition such as `openable(r:receptacle) & opened(r:receptacle)`; None where there is none."""
    if not condition.strip():
        return None
    atoms: list[Atom] = []
    types: dict[str, str] = {}
    for part in condition.split("&"):
        found = _CONDITION.fullmatch(part)
        if found is None:
            raise Unsupported(f"found a condition in the grammar that this engine does not read: {condition!r}")
        names = [item.partition(":") for item in found[2].split(",") if item.strip()]
        # Variables of a query begin with ?, as in PDDL.
        types.update({f"?{name.strip()}": kind.strip() or name.strip().rstrip("'") for name, _, kind in names})
        atoms.append((found[1], *[f"?{name.strip()}" for name, _, _ in names]))
    return Given(tuple(atoms), tuple(types.items()))


def _expression(text: str) -> Evaluate:
    """A Python expression of names, their attributes, texts, `+` and `or`. Nothing else is run."""
    try:
        return _compiled(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise Unsupported(f"found an expression in the grammar that cannot be read: {text!r}") from error


def _compiled(node: ast.expr) -> Evaluate:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return lambda _, value=node.value: value  # type: ignore[misc]
    if isinstance(node, ast.Name):
        return lambda things, name=f"?{node.id}": things[name]  # type: ignore[misc]
    if isinstance(node, ast.Attribute) and node.attr in Thing.__dataclass_fields__:
        owner = _compiled(node.value)
        return lambda things, name=node.attr: getattr(owner(things), name)  # type: ignore[misc]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _compiled(node.left), _compiled(node.right)
        return lambda things: left(things) + right(things)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        parts = [_compiled(value) for value in node.values]
        return lambda things: next((value for part in parts if (value := part(things))), "")
    raise Unsupported(f"found an expression in the grammar that this engine does not read: {ast.unparse(node)!r}")
