"""Tool calls in answers, as JSON: `{"arguments": {…}, "name": …}` with sorted keys.

Of a call only the JSON counts, whatever is around it: models write
`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, fenced JSON, a list of calls, `parameters` for `arguments`, or
`tool_name` for `name`. And what a prompt says of the actions that there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from crl.protocols import Actions, FreeText, ToolCalls
from crl.text.unicode import valid_text


def json_calls(answer: str, tools: Set[str]) -> list[str]:
    """The calls in an answer (without its thoughts), in their order.

    An object that is no call may hold some, such as `{"tool_calls": [{…}]}`; inside one, only what names a tool is one.
    """
    calls, at, inside = list[str](), answer.find("{"), 0
    while at >= 0:
        try:
            value, end = JSON.raw_decode(answer, at)
            call = call_of(value)
            if call is not None and (at >= inside or _name(value) in tools):
                calls.append(call)
            else:
                inside, end = max(inside, end), at + 1
        except (ValueError, RecursionError):
            end = at + 1
        at = answer.find("{", end)
    return calls


def call_of(value: Mapping[str, Any]) -> str | None:
    """A call from what a model wrote as one; None where it is none. Raises ValueError for broken arguments."""
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    if isinstance(arguments, str):  # some models write the arguments as a JSON text
        arguments = JSON.decode(arguments)
    name = _name(value)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    call = {"name": name, "arguments": arguments}
    return valid_text(json.dumps(call, ensure_ascii=False, sort_keys=True, allow_nan=False))


def _name(value: Mapping[str, Any]) -> Any:
    return value.get("name", value.get("tool_name"))


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


# Not strict: models write shell commands with the line breaks that JSON wants escaped.
JSON = json.JSONDecoder(parse_constant=_no_number, strict=False)


def actions_text(actions: Actions, *, takes_tools: bool = False) -> str:
    """What stands for `{actions}` in a prompt. `takes_tools`: the chat's own template shows the tools."""
    if isinstance(actions, FreeText):
        return actions.form
    if not isinstance(actions, ToolCalls):
        return ", ".join(actions)
    if takes_tools:
        many = "one or more" if actions.several else "one"
        return f"call {many} of the tools " + ", ".join(tool.name for tool in actions.tools)
    shown = [
        f"- {tool.name}: {tool.description} Arguments: {json.dumps(tool.parameters, ensure_ascii=False)}"
        for tool in actions.tools
    ]
    more = ", once per call" if actions.several else ""
    return "\n".join([f'answer with JSON: {{"name": <tool>, "arguments": {{…}}}}{more}. The tools:', *shown])
