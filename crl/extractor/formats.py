"""The two forms of an extractor output: reading them into operations, and writing them (for demonstrations).

`lines`: one operation per line and nothing else; blank lines are skipped, keywords may be in any case.

    ADD: text            UPDATE: text           RETURN            (distill)
    KEEP 1,2             MERGE 1,3: text        DROP 4            (merge)

`json` (as the paper): a list of operations, an object with a list under `operations`, or one operation. It may be in
a ``` fence with text around it (the last fence counts); without a fence nothing else may be beside it. An operation
is an object with `operation` and, as its kind needs, `experience` and `entries`; `op` or `kind` and `text` are
understood as well, other keys ignored.

Thoughts before either form (`<think>…</think>`) are taken off in `crl/extractor/parse.py`, where it is parsed as well
whether operations make sense together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from crl.text.answers import json_part

Format = Literal["json", "lines"]
OutputKind = Literal["distill", "merge"]

KINDS: dict[str, frozenset[str]] = {
    "distill": frozenset({"add", "update", "return"}),
    "merge": frozenset({"keep", "merge", "drop"}),
}
WITH_TEXT = frozenset({"add", "update", "merge"})
WITH_ENTRIES = KINDS["merge"]

_KEYWORD = re.compile(r"([A-Za-z]+)[ \t]*")


class ReasonCode(StrEnum):
    """What became of an extractor output: `ok`, or the first thing that is wrong with it."""

    ok = "ok"
    empty = "empty"
    truncated = "truncated"
    unfinished_thought = "unfinished_thought"
    """It ended, or was cut off, inside a thought."""
    no_operation = "no_operation"
    bad_json = "bad_json"
    not_an_operation = "not_an_operation"
    unknown_operation = "unknown_operation"
    too_many_operations = "too_many_operations"
    empty_text = "empty_text"
    text_too_long = "text_too_long"
    bad_text = "bad_text"
    update_without_guide = "update_without_guide"
    mixed_return = "mixed_return"
    bad_index = "bad_index"
    duplicate_operation = "duplicate_operation"
    example = "example"
    """A text is one of the prompt's own examples, word for word: it says nothing of any episode."""
    prompt_too_long = "prompt_too_long"
    """Nothing was sampled: the prompt does not fit the model's context, however much of the trajectory is left out."""


class Malformed(Exception):
    """An output is not in form; only ever seen inside this room."""

    def __init__(self, reason: ReasonCode) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(frozen=True, slots=True)
class ParsedOperation:
    """One operation as written: `indices` count the entries shown to a merge from 1."""

    kind: str
    text: str | None = None
    indices: tuple[int, ...] = ()


def read_operations(text: str, form: Format, kind: OutputKind) -> list[ParsedOperation]:
    """All operations of an output in their order; raises Malformed with the first reason found."""
    return _read_json(text, kind) if form == "json" else _read_lines(text, kind)


def write_operations(operations: Sequence[ParsedOperation], form: Format) -> str:
    """The output that asks for these operations: the inverse of :func:`read_operations`. Lines hold one-line texts."""
    if form == "json":
        return json.dumps({"operations": [_as_json(operation) for operation in operations]}, ensure_ascii=False)
    return "\n".join(_as_line(operation) for operation in operations)


def _as_json(operation: ParsedOperation) -> dict[str, Any]:
    written: dict[str, Any] = {"operation": operation.kind}
    if operation.indices:
        written["entries"] = list(operation.indices)
    if operation.text is not None:
        written["experience"] = operation.text
    return written


def _as_line(operation: ParsedOperation) -> str:
    words = [operation.kind.upper()]
    if operation.indices:
        words.append(",".join(map(str, operation.indices)))
    line = " ".join(words)
    return line if operation.text is None else f"{line}: {' '.join(operation.text.split())}"


def _read_lines(text: str, kind: OutputKind) -> list[ParsedOperation]:
    return [_read_line(line.strip(), kind) for line in text.split("\n") if line.strip()]


def _read_line(line: str, kind: OutputKind) -> ParsedOperation:
    found = _KEYWORD.match(line)
    if found is None:
        raise Malformed(ReasonCode.not_an_operation)
    word, rest = found.group(1).lower(), line[found.end() :]
    if word not in KINDS[kind]:
        # "DELETE: …" and "KEEP 2" in a distilled output are operations nobody knows here; other words are chatter.
        formal = rest.startswith(":") or (word in KINDS["distill"] | KINDS["merge"] and not rest[:1].isalpha())
        raise Malformed(ReasonCode.unknown_operation if formal else ReasonCode.not_an_operation)
    if word not in WITH_TEXT:
        if word in WITH_ENTRIES:
            return ParsedOperation(word, None, _indices(rest.split(",")))
        if rest:
            raise Malformed(ReasonCode.not_an_operation)
        return ParsedOperation(word)
    numbers, colon, content = rest.partition(":")
    if not colon or (numbers.strip() and word not in WITH_ENTRIES):
        raise Malformed(ReasonCode.not_an_operation)
    indices = _indices(numbers.split(",")) if word in WITH_ENTRIES else ()
    return ParsedOperation(word, content.strip(), indices)


def _indices(parts: Sequence[object]) -> tuple[int, ...]:
    numbers = []
    for part in parts:
        if isinstance(part, str) and part.strip().isascii() and part.strip().isdigit() and len(part.strip()) < 10:
            numbers.append(int(part))
        elif isinstance(part, int) and not isinstance(part, bool):
            numbers.append(part)
        else:
            raise Malformed(ReasonCode.bad_index)
    return tuple(numbers)


def _read_json(text: str, kind: OutputKind) -> list[ParsedOperation]:
    try:
        value = json.loads(json_part(text))
    except (ValueError, RecursionError) as error:  # ValueError: also numbers with more digits than Python converts
        raise Malformed(ReasonCode.bad_json) from error
    if isinstance(value, dict) and "operations" in value:
        value = value["operations"]
    elif isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise Malformed(ReasonCode.not_an_operation)
    return [_read_object(item, kind) for item in value]


def _read_object(item: object, kind: OutputKind) -> ParsedOperation:
    if not isinstance(item, dict):
        raise Malformed(ReasonCode.not_an_operation)
    word = _first(item, "operation", "op", "kind")
    if not isinstance(word, str):
        raise Malformed(ReasonCode.not_an_operation)
    word = word.strip().lower()
    if word not in KINDS[kind]:
        raise Malformed(ReasonCode.unknown_operation)
    content = _content(item) if word in WITH_TEXT else None
    if word not in WITH_ENTRIES:
        return ParsedOperation(word, content)
    entries = item.get("entries")
    return ParsedOperation(word, content, _indices(entries if isinstance(entries, list) else [entries]))


def _content(item: dict[str, Any]) -> str:
    content = _first(item, "experience", "text")
    if content is None:
        raise Malformed(ReasonCode.empty_text)
    if not isinstance(content, str):
        raise Malformed(ReasonCode.not_an_operation)
    return content.replace("\r\n", "\n").strip()


def _first(item: dict[str, Any], *names: str) -> Any:
    return next((item[name] for name in names if name in item), None)
