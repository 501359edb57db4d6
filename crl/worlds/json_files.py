"""JSON files of others' data, read so that what is wrong in one is refused with its place.

An array of records is read a piece at a time: some files hold gigabytes of text. `refuse(found, expected, where)` makes
the error: it knows whose file it is, and where to get it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crl.errors import BadInput
from crl.paths import possible_path

Refuse = Callable[[str, str, str], BadInput]
_PIECE = 1 << 22
_BLANKS = " \t\r\n"
_SHOWN = 60


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def data_folder(directory: str | None, variable: str, default: str, whose: str) -> tuple[Path, str]:
    """Where files are looked for, and what says so: the config's `directory`, the variable, or the default."""
    name, source = default, f"the default {default}"
    if directory is not None:
        name, source = directory, "environment.directory"
    elif os.environ.get(variable):
        name, source = os.environ[variable], f"${variable}"
    return possible_path(name, f"the directory of {whose}", where=source, home=True), source


def table(path: Path, refuse: Refuse, *, of: str) -> dict[str, Any]:
    """A JSON file that holds one object; `of` says what is in it: ids with their records."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise refuse(_reason(error), "a JSON object", str(path)) from None
    if not isinstance(value, dict):
        raise refuse(f"it is {shown(value)}", f"a JSON object: {of}", str(path))
    return value


def array(path: Path, refuse: Refuse, *, of: str) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON file that holds one array, with their index, read a piece at a time; `of` names them."""
    expected = f"a JSON array of {of}"
    decoder = json.JSONDecoder()
    index = at = 0
    open_end = False
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_PIECE)
            at = _behind_blanks(text, 0)
            if text[at : at + 1] != "[":
                raise refuse(f"it begins with {shown(text[at : at + 20])}", expected, str(path))
            at += 1
            while True:
                at = _behind_blanks(text, at)
                try:
                    if text[at] == "]" and not open_end:
                        return
                    value, end = decoder.raw_decode(text, at)
                    following = text[_behind_blanks(text, end)]
                except (ValueError, IndexError) as error:
                    more = file.read(max(_PIECE, len(text)))
                    if not more:
                        raise refuse(_reason(error), expected, f"{path}, record {index}") from None
                    text, at = text[at:] + more, 0
                    continue
                if following not in ",]":
                    raise refuse(f"{shown(following)} follows it", "`,` or `]`", f"{path}, record {index}")
                yield index, value
                index += 1
                open_end = following == ","
                at = _behind_blanks(text, end) + open_end
                if at > _PIECE:
                    text, at = text[at:], 0
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(_reason(error), expected, f"{path}, record {index}") from None


def _behind_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _reason(error: Exception) -> str:
    if isinstance(error, IndexError):
        return "it ends too early"
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
