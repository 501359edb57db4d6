"""The three tools, and an actor's call of one: as the tool call of its chat template, or as plain text.

As plain text a call is the tag form that agents of SWE-Bench are known by, the last one in the answer; or, for small
models, a line that begins with the name of a tool: `execute_bash <command>` to the end of the answer, or `submit`.

    <function=str_replace_editor>
    <parameter=command>view</parameter>
    <parameter=path>/testbed/thing.py</parameter>
    </function>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crl.protocols import FreeText, Tool, ToolCalls
from crl.worlds.sandbox.bubblewrap import TESTBED

BASH, EDITOR, SUBMIT = "execute_bash", "str_replace_editor", "submit"
COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")

_TEXT = {"type": "string"}
TOOLS = ToolCalls(
    (
        Tool(
            BASH,
            f"Run a bash command in {TESTBED}. Every call is a new shell without network; nothing runs on after it.",
            {"type": "object", "properties": {"command": _TEXT}, "required": ["command"]},
        ),
        Tool(
            EDITOR,
            f"View, create and edit files below {TESTBED}. view: a file with line numbers, or a folder. create: a new "
            "file. str_replace: replace old_str, which has to be in the file exactly once, by new_str. insert: new_str "
            "behind line insert_line. undo_edit: take back the last edit of a file.",
            {
                "type": "object",
                "properties": {
                    "command": {"type": "string", "enum": list(COMMANDS)},
                    "path": {"type": "string", "description": f"absolute path, such as {TESTBED}/file.py"},
                    "file_text": _TEXT,
                    "old_str": _TEXT,
                    "new_str": _TEXT,
                    "insert_line": {"type": "integer"},
                    "view_range": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["command", "path"],
            },
        ),
        Tool(SUBMIT, "Hand in the repaired repository: hidden tests decide.", {"type": "object", "properties": {}}),
    )
)
FORM = FreeText(
    "one call of a tool: <function=execute_bash>\n<parameter=command>ls</parameter>\n</function>, in the same form "
    "str_replace_editor (parameters command, path, and by command file_text, old_str, new_str, insert_line, "
    "view_range) or submit; in short `execute_bash ls` or `submit`"
)

_FUNCTION = re.compile(r"<function=(?P<name>[^>\n]*)>(?P<body>.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(?P<name>[^>\n]*)>(?P<value>.*?)</parameter>", re.DOTALL)
_SHORT_SUBMIT = re.compile(rf"^[ \t]*{SUBMIT}[ \t.]*$", re.MULTILINE)
_SHORT_BASH = re.compile(rf"^[ \t]*{BASH}\b[ \t]*:?(?P<command>.*)\Z", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool and its arguments, of the kinds that its schema says."""

    name: str
    arguments: Mapping[str, Any]


LONGEST_COMMAND = 120_000
"""Bytes of a command: Linux takes no argument of 128 KiB."""


class BadCall(Exception):
    """What is wrong with a call, for the actor."""


def call_of(action: str | None, *, as_text: bool) -> Call:
    """The call that an action is. Raises BadCall that says what is wrong."""
    if action is None:
        raise BadCall(f"That is no call of a tool. The tools: {BASH}, {EDITOR}, {SUBMIT}.")
    name, arguments = _from_text(action) if as_text else _from_json(action)
    if name not in _SCHEMAS:
        raise BadCall(f"There is no tool {name[:60]!r}. The tools: {BASH}, {EDITOR}, {SUBMIT}.")
    return Call(name, {key: _checked(name, key, value) for key, value in _known(name, arguments).items()})


_SCHEMAS: Mapping[str, Mapping[str, Any]] = {tool.name: tool.parameters for tool in TOOLS.tools}


def _known(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a tool has; null is one that is left out."""
    schema = _SCHEMAS[name]
    given = {key: value for key, value in arguments.items() if key in schema["properties"] and value is not None}
    missing = [key for key in schema.get("required", ()) if key not in given]
    if missing:
        raise BadCall(f"{name} lacks {', '.join(missing)}.")
    return given


def _checked(name: str, key: str, value: Any) -> Any:
    wanted = _SCHEMAS[name]["properties"][key]
    if wanted["type"] == "string":
        if not isinstance(value, str):
            raise BadCall(f"{name}: {key} has to be a text.")
        if "enum" in wanted and value.strip() not in wanted["enum"]:
            raise BadCall(f"{name}: {key} has to be one of {', '.join(wanted['enum'])}.")
        if any("\ud800" <= each <= "\udfff" for each in value):  # JSON can say half of a pair; no file can hold it
            raise BadCall(f"{name}: {key} has to be a text of Unicode, without surrogates.")
        if name == BASH and ("\0" in value or len(value.encode()) > LONGEST_COMMAND):
            raise BadCall(f"{name}: {key} has to be without NUL, and of at most {LONGEST_COMMAND:,} bytes.")
        return value.strip() if "enum" in wanted else value
    if isinstance(value, str):  # plain text has no numbers, and some models write them so
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadCall(f"{name}: {key} is not understood.") from None
    if wanted["type"] == "integer":
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise BadCall(f"{name}: {key} has to be a whole number.")
    if isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return value
    raise BadCall(f"{name}: {key} has to be a list of whole numbers.")


def _from_json(action: str) -> tuple[str, Mapping[str, Any]]:
    try:
        value = json.loads(action)
        return str(value["name"]), dict(value["arguments"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadCall("That is no call of a tool.") from None


def _from_text(action: str) -> tuple[str, Mapping[str, Any]]:
    found = list(_FUNCTION.finditer(action))
    if found:
        body = found[-1]["body"]
        return found[-1]["name"].strip(), {
            each["name"].strip(): _value(each["value"]) for each in _PARAMETER.finditer(body)
        }
    bash = _SHORT_BASH.search(action)
    if bash is not None and bash["command"].strip():
        return BASH, {"command": bash["command"].strip()}
    if _SHORT_SUBMIT.search(action):
        return SUBMIT, {}
    raise BadCall(f"That is no call of a tool. A call is {FORM.form}.")


def _value(text: str) -> str:
    """The value of a parameter: one line break behind its tag and one before the next are not of it."""
    return text.removeprefix("\n").removesuffix("\n") if text.startswith("\n") else text


def written(call: Call, *, as_text: bool) -> str:
    """A call as an actor writes it: the inverse of :func:`call_of`."""
    if not as_text:
        value = {"name": call.name, "arguments": dict(call.arguments)}
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    lines = [f"<function={call.name}>"]
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        lines.append(f"<parameter={name}>{_tagged(text)}</parameter>")
    return "\n".join([*lines, "</function>"])


def _tagged(text: str) -> str:
    return f"\n{text}\n" if "\n" in text or not text.strip() else text
