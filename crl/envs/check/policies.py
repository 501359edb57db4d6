"""Random actions of every form, from what a player can see: names, free text, tool calls; some of them invalid.

What is drawn depends on the stream and on what the environment shows, never on other slots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from random import Random
from typing import Any

from crl.protocols import Actions, FreeText, ToolCalls

_WORD = re.compile(r"\w+")
_BRACKETED = re.compile(r"(\w+)([\[(<])[^\[\]()<>]*([\])>])")
_QUOTED = re.compile(r"[`\"“']([^`\"”']{1,80})[`\"”']")
_INVALID = 0.1
"""Share of actions that name nothing, or nothing that there is."""
_ORACLE = 0.4
"""Share of the oracle's actions where actions are not listed: words alone hardly ever get anywhere."""

ILLEGAL: Mapping[str, str | None] = {
    "nothing": None,
    "an unknown name": "no such action exists",
    "empty text": "",
    "blanks": " \n\t ",
    "100,000 characters": "x" * 100_000,
    "unicode": "идти на север 北へ 🦄\u202e\u0301",
    "control characters": "\x00\x1b[2J\x07\r\n\x7f",
    "brackets": "[" * 500 + "{(<" * 50,
    "a tool that there is not": '{"arguments": {}, "name": "no_such_tool"}',
    "a tool call of wrong types": '{"arguments": {"a": [null, {"b": 1e308}]}, "name": "x"}',
}
"""Answers that no environment may stumble over, by what they are."""


def draw_action(random: Random, actions: Actions, observation: str, oracle: str | None) -> str | None:
    """An action for what is shown; None as an answer that names nothing. `oracle`: what the oracle would do."""
    invalid = random.random() < _INVALID
    if isinstance(actions, ToolCalls):
        return _tool_call(random, actions, observation, oracle, invalid=invalid)
    if invalid:
        return random.choice([None, "no such action exists", "ü🦄"])
    if isinstance(actions, tuple):
        return random.choice(actions) if actions else None
    if oracle is not None and random.random() < _ORACLE:
        return oracle
    return _free_text(random, actions, observation)


def _free_text(random: Random, actions: FreeText, observation: str) -> str:
    words = _WORD.findall(observation) or ["something"]
    word = " ".join(random.choice(words) for _ in range(random.choice([1, 1, 2])))
    patterns: list[tuple[str, str, str]] = _BRACKETED.findall(actions.form)
    quoted: list[str] = [found for found in _QUOTED.findall(actions.form) if not _BRACKETED.search(found)]
    if patterns and random.random() < 0.8:
        name, opening, closing = random.choice(patterns)
        inside = random.choice([word, str(random.randint(0, 100)), ""])
        return f"{name}{opening}{inside}{closing}"
    if quoted and random.random() < 0.6:
        return random.choice(quoted)
    form: list[str] = _WORD.findall(actions.form) or ["go"]
    return random.choice([word, str(random.randint(0, 100)), random.choice(form)])


def _tool_call(random: Random, actions: ToolCalls, observation: str, oracle: str | None, *, invalid: bool) -> str:
    if oracle is not None and not invalid and random.random() < _ORACLE:
        return oracle
    tool = random.choice(actions.tools)
    arguments = draw_value(random, {"type": "object", **tool.parameters}, observation)
    name = tool.name
    if invalid:
        fault = random.choice(["name", "missing", "type"])
        if fault == "name":
            name = "no_such_tool"
        elif fault == "missing" or not arguments:
            arguments = {}
        else:
            arguments[random.choice(sorted(arguments))] = {"of": ["another type"]}
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True, ensure_ascii=False)


def draw_value(random: Random, schema: Mapping[str, Any], observation: str, depth: int = 0) -> Any:
    """A value of a JSON schema: its types, enumerations, bounds, required and some optional properties."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return random.choice(schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return draw_value(random, random.choice(choices), observation, depth + 1)
    kind = schema.get("type", "string")
    kind = random.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: draw_value(random, inner, observation, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or (depth < 4 and random.random() < 0.5)
        }
    if kind == "array":
        count = random.randint(schema.get("minItems", 0), min(schema.get("maxItems", 3), 8)) if depth < 4 else 0
        return [draw_value(random, schema.get("items", {}), observation, depth + 1) for _ in range(count)]
    if kind == "integer":
        return random.randint(int(schema.get("minimum", 0)), int(schema.get("maximum", 100)))
    if kind == "number":
        return round(random.uniform(float(schema.get("minimum", 0)), float(schema.get("maximum", 100))), 3)
    if kind == "boolean":
        return random.random() < 0.5
    if kind == "null":
        return None
    return random.choice(_WORD.findall(observation) or ["text"])
