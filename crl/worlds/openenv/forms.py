"""Typed actions as an actor writes them, by the JSON schema that a server gives of its action.

An action with one field is that field: a name of a list, where the schema has one, else text. Any other is a call of
one tool, whose arguments are its fields. A server whose action calls tools of its own (MCP) has those tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crl.protocols import Actions, FreeText, Tool, ToolCalls

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_LONGEST_NUMBER = 18
"""Characters."""
_MOST_NAMES = 64
"""A number with more values is written, not chosen."""
_DEEPEST = 20
"""Of a schema that holds itself, what is below is anything."""
_APART = ("metadata", "done", "reward")
"""Fields of every action or observation that say nothing of the task."""


class Unreadable(Exception):
    """What was written is no action; the text says why, for the actor."""


@dataclass(frozen=True)
class Form:
    """How actions are written, and what a server is sent for them."""

    actions: Actions
    name: str | None = None
    """The field that is written alone."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Of a field whose values have names: those values."""
    number: type[int] | type[float] | None = None
    """Of a field that is a number: the only one in the text."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields that have one value only."""
    calls_tools: bool = False
    """Whether the action is itself a call of a tool, by its name and arguments."""

    def listed(self, names: Sequence[Any]) -> tuple[str, ...]:
        """The actions of a list that an observation has. Raises ValueError where there is none."""
        if self.name is None or not isinstance(names, Sequence) or isinstance(names, str) or not names:
            raise ValueError(f"no list of values of one field: {names!r:.100}")
        return tuple(str(each) for each in names)

    def action(self, text: str) -> dict[str, Any]:
        """What the server is sent. Raises Unreadable."""
        if self.name is not None:
            return {**self.constants, self.name: self._value(text)}
        if not isinstance(self.actions, ToolCalls):
            return dict(self.constants)
        call = json.loads(text)
        names = [tool.name for tool in self.actions.tools]
        if call["name"] not in names:
            raise Unreadable(f"There is no tool {call['name']}. Possible: {', '.join(names)}.")
        if self.calls_tools:
            return {**self.constants, "tool_name": call["name"], "arguments": call["arguments"]}
        return {**self.constants, **call["arguments"]}

    def _value(self, text: str) -> Any:
        if text in self.values:
            return self.values[text]
        if self.number is None:
            return text
        numbers = _NUMBER.findall(text)
        fits = [each for each in numbers if len(each) <= _LONGEST_NUMBER and (self.number is float or "." not in each)]
        if len(numbers) == len(fits) == 1:
            return self.number(fits[0])
        raise Unreadable(f"That is not one {'whole ' if self.number is int else ''}number: {text[:80]!r}.")


def form_of(schema: Mapping[str, Any], described: str | None) -> Form:
    """The form of the actions of a schema; `described`: what one looks like, None: as its field says."""
    known = _resolved(schema, schema)
    fields = {name: each for name, each in known.get("properties", {}).items() if name not in _APART}
    constants = {name: each["const"] for name, each in fields.items() if "const" in each}
    free = {name: each for name, each in fields.items() if name not in constants}
    if len(free) == 1:
        ((name, inner),) = free.items()
        form = _of_field(name, inner, constants, described)
        if form is not None:
            return form
    title = re.sub(r"\W+", "_", str(known.get("title") or "act"))
    if not free:
        return Form((title,), constants=constants)
    required = [name for name in known.get("required", ()) if name in free]
    parameters = {"type": "object", "properties": free, "required": required}
    about = described or known.get("description") or "Act on the environment."
    return Form(ToolCalls((Tool(title, str(about), parameters),)), constants=constants)


def form_of_tools(tools: Sequence[Mapping[str, Any]]) -> Form:
    """The form of actions that call a server's own tools. Raises ValueError for what are no tools."""
    if not tools:
        raise ValueError("the server lists no tools")
    made = tuple(
        Tool(each["name"], each.get("description") or "", _resolved(each["input_schema"], each["input_schema"]))
        for each in tools
    )
    return Form(ToolCalls(made), constants={"type": "call_tool"}, calls_tools=True)


def calls_tools(schema: Mapping[str, Any]) -> bool:
    """Whether an action names a tool of the server's."""
    return {"tool_name", "arguments"} <= set(schema.get("properties", ()))


def _of_field(name: str, inner: Mapping[str, Any], constants: Mapping[str, Any], described: str | None) -> Form | None:
    """The form of an action with one field; None where it is no scalar."""
    kind, values = inner.get("type"), _values(inner)
    named = {(each if isinstance(each, str) else json.dumps(each)): each for each in values}
    if named and len({" ".join(text.split()).casefold() for text in named} - {""}) == len(values):
        return Form(tuple(named), name, named, constants=constants)
    text = described or inner.get("description") or f"the {name.replace('_', ' ')}, and nothing else"
    if kind == "string":
        return Form(FreeText(text), name, constants=constants)
    if kind in ("integer", "number"):
        number = int if kind == "integer" else float
        what = described or f"{text} (a {'whole ' if number is int else ''}number)"
        return Form(FreeText(what), name, number=number, constants=constants)
    return None


def _values(inner: Mapping[str, Any]) -> list[Any]:
    """The values that a field may have, where they are few."""
    if inner.get("enum"):
        return list(inner["enum"])
    if inner.get("type") == "boolean":
        return [True, False]
    first = inner.get("minimum", inner.get("exclusiveMinimum", -1) + 1 if "exclusiveMinimum" in inner else None)
    last = inner.get("maximum", inner.get("exclusiveMaximum", 1) - 1 if "exclusiveMaximum" in inner else None)
    if inner.get("type") != "integer" or first is None or last is None or not 0 <= last - first < _MOST_NAMES:
        return []
    return list(range(int(first), int(last) + 1))


def _resolved(value: Any, whole: Mapping[str, Any], depth: int = 0) -> Any:
    """A schema in which nothing refers to another part of it."""
    if depth > _DEEPEST:
        return {}
    if isinstance(value, list):
        return [_resolved(each, whole, depth + 1) for each in value]
    if not isinstance(value, Mapping):
        return value
    if isinstance(reference := value.get("$ref"), str):
        target: Any = whole
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        beside = {key: each for key, each in value.items() if key != "$ref"}
        return _resolved({**target, **beside}, whole, depth + 1)
    return {key: _resolved(each, whole, depth + 1) for key, each in value.items() if key != "$defs"}


def shown(observation: Mapping[str, Any], fields: Sequence[str] | None, without: Sequence[str] = ()) -> str:
    """An observation as an actor reads it: its only text, else a line per field. Raises KeyError for a field that it
    does not have."""
    names = fields or [name for name in observation if name not in (*_APART, *without)]
    values = {name: observation[name] for name in names}
    if len(values) == 1 and isinstance(text := next(iter(values.values())), str):
        return text
    lines = {name: value for name, value in values.items() if value is not None and value != ""}
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in lines.items()
    )
