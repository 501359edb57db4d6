"""Typed actions as an actor writes them, by the JSON schema of a server's action; and what it shows, as text.

An action with one field is that field: a name of a list, where the schema has one, else text. Any other is a call of
one tool, whose arguments are its fields. A server whose action calls tools of its own (MCP) has those tools.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from crl.protocols import Actions, FreeText, Tool, ToolCalls

_NUMBER = re.compile(r"[-+]?\d{1,18}(?:\.\d{1,18})?")
_MOST_NAMES = 64
"""A number with more values is written, not chosen."""
_DEEPEST = 20
"""Of a schema that holds itself, what is below is anything."""
_APART = ("metadata", "done", "reward")
"""Fields of every action or observation that say nothing of the task."""
_IMAGE = re.compile(r'data:(image|video)/|{"type": "image|(iVBORw0KGgo|/9j/|R0lGOD|UklGR)[\w+/=\s]{40,}$')
"""A data URL, a part of a message, or PNG, JPEG, GIF and WebP in base64."""


class ServerFault(Exception):
    """A server did not do what it was asked; `code` is the reason code of the episode, `details` what is known."""

    def __init__(self, message: str, code: str = "environment_server_error") -> None:
        self.code, self.details = code, message
        super().__init__(message)


class Refused(Exception):
    """What was written is no action; the text says why, for the actor."""


@dataclass(frozen=True)
class Form:
    """How actions are written, and what a server is sent for one; `sent` raises Refused."""

    actions: Actions
    sent: Callable[[str], dict[str, Any]]

    def listed(self, values: Any) -> tuple[str, ...]:
        """Those of a list that an observation has. Raises ServerFault where it is none of the only field's values."""
        if not isinstance(values, list) or not values or isinstance(self.actions, ToolCalls):
            raise ServerFault(f"legal_actions lists no values of an action's only field: {values!r:.100}")
        return tuple(str(each) for each in values)


def form_of(schema: Mapping[str, Any]) -> Form:
    """The form of the actions of a schema."""
    known = _resolved(schema, schema)
    fields = {name: each for name, each in known.get("properties", {}).items() if name not in _APART}
    constants = {name: each["const"] for name, each in fields.items() if "const" in each}
    free = {name: each for name, each in fields.items() if name not in constants}
    form = _of_field(*next(iter(free.items()))) if len(free) == 1 else None
    title = re.sub(r"\W+", "_", str(known.get("title") or "act"))
    if not free:
        form = Form((title,), lambda text: {})
    elif form is None:
        required = [name for name in known.get("required", ()) if name in free]
        parameters = {"type": "object", "properties": free, "required": required}
        tool = Tool(title, str(known.get("description") or "Act on the environment."), parameters)
        form = Form(ToolCalls((tool,)), lambda text: dict(json.loads(text)["arguments"]))
    actions, sent = form.actions, form.sent
    return Form(actions, lambda text: {**constants, **sent(text)})


def form_of_tools(tools: Sequence[Mapping[str, Any]]) -> Form:
    """The form of actions that call a server's own tools."""

    def sent(text: str) -> dict[str, Any]:
        call = json.loads(text)
        return {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]}

    schemas = [_resolved(each["input_schema"], each["input_schema"]) for each in tools]
    made = [
        Tool(each["name"], each.get("description") or "", schema) for each, schema in zip(tools, schemas, strict=True)
    ]
    return Form(ToolCalls(tuple(made)), sent)


def _of_field(name: str, inner: Mapping[str, Any]) -> Form | None:
    """The form of an action with one field; None where it is no scalar."""
    kind, values = inner.get("type"), _values(inner)
    named = {(each if isinstance(each, str) else json.dumps(each)): each for each in values}
    if named and len({" ".join(text.split()).casefold() for text in named} - {""}) == len(values):
        return Form(tuple(named), lambda text: {name: named.get(text, text)})
    form = inner.get("description") or f"the {name.replace('_', ' ')}, and nothing else"
    if kind == "string":
        return Form(FreeText(form), lambda text: {name: text})
    if kind not in ("integer", "number"):
        return None
    what, of = ("whole number", int) if kind == "integer" else ("number", float)

    def sent(text: str) -> dict[str, Any]:
        numbers = _NUMBER.findall(text)
        if len(numbers) == 1 and (of is float or "." not in numbers[0]):
            return {name: of(numbers[0])}
        raise Refused(f"That is not one {what}: {text[:80]!r}.")

    return Form(FreeText(f"{form} (a {what})"), sent)


def _values(inner: Mapping[str, Any]) -> list[Any]:
    """The values that a field may have, where they are few."""
    if inner.get("type") == "boolean":
        return [True, False]
    first = inner.get("minimum", inner.get("exclusiveMinimum", math.nan) + 1)
    last = inner.get("maximum", inner.get("exclusiveMaximum", math.nan) - 1)
    few = inner.get("type") == "integer" and 0 <= last - first < _MOST_NAMES
    return list(inner.get("enum") or (range(int(first), int(last) + 1) if few else ()))


def _resolved(value: Any, whole: Any, depth: int = 0) -> Any:
    """A schema in which nothing refers to another part of it."""
    if isinstance(value, list):
        return [_resolved(each, whole, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    if isinstance(reference := value.get("$ref"), str):
        value = {**reduce(lambda part, key: part[key], reference.split("/")[1:], whole), **value}
    inner = value.items() if depth < _DEEPEST else ()
    return {key: _resolved(each, whole, depth + 1) for key, each in inner if key not in ("$defs", "$ref")}


def shown(observation: Mapping[str, Any], fields: Sequence[str] | None, without: str | None) -> str:
    """An observation as an actor reads it: its only text, else a line per field. Raises ServerFault."""
    if lacking := set(fields or ()) - set(observation):
        raise ServerFault(f"the observation has no {', '.join(lacking)}; it has {', '.join(observation)}")
    values = {name: observation[name] for name in fields or observation if name not in (*_APART, without)}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
        if value not in (None, "")
    }
    for name in (name for name, text in texts.items() if _IMAGE.match(text)):
        message = f"the field {name} is an image; a model reads text only: name fields of text with `observation`"
        raise ServerFault(message, "environment_no_text")
    alone = len(values) == 1 and texts == values
    return "\n".join(text if alone else f"{name}: {text}" for name, text in texts.items())
