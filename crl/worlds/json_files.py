"""JSON files of others' data, read so that what is wrong in one is refused with its place.

Records are read a piece at a time: some files hold gigabytes of text. `refuse(found, expected, where)` makes
the error: it knows whose file it is, and where to get it again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from crl.config.json_text import RepeatedKey, read_json, unrepeated
from crl.errors import BadInput
from crl.paths import possible_path

Refuse = Callable[[str, str, str], BadInput]
_PIECE = 1 << 22
_BLANKS = " \t\r\n"
_SHOWN = 60
_NEAR = 0.9
"""Names this near (`difflib.get_close_matches`) are one that was misspelled: `contexts`, `supporting_fact`."""


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
        value = read_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise refuse(reason(error), "a JSON object", str(path)) from None
    if not isinstance(value, dict):
        raise refuse(f"it is {shown(value)}", f"a JSON object: {of}", str(path))
    return value


def records(path: Path, refuse: Refuse, *, of: str) -> Iterator[tuple[int, str, Any]]:
    """The records of a JSON file: their index, what a message calls them, and the value; `of` names them.

    A file holds an array, several one after the other (as `Dataset.to_json(lines=False)` wrote them), or one object
    per line. It is read a piece at a time, and to its end: what is neither is refused.
    """
    expected = f"a JSON array of {of}, or one object per line"
    decoder = json.JSONDecoder(object_pairs_hook=unrepeated)
    index, line, at = 0, 1, 0
    inside = needed = False
    where = str(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_PIECE)
            while True:
                start, at = at, _behind_blanks(text, at)
                line += text.count("\n", start, at)
                where = f"{path}, record {index}, line {line}"
                more = ""
                try:
                    if inside and text[at] == "]" and not needed:
                        inside, at = False, at + 1
                    elif not inside and text[at] == "[":
                        inside, at = True, at + 1
                    elif not inside and text[at] != "{":
                        raise refuse(f"{shown(text[at : at + 20].splitlines()[0])} is no record", expected, where)
                    else:
                        value, end = decoder.raw_decode(text, at)
                        following = text[_behind_blanks(text, end)] if inside else ""
                        if inside and following not in ",]":
                            raise refuse(f"{shown(following)} follows it", "`,` or `]`", where)
                        yield index, where, value
                        index += 1
                        line += text.count("\n", at, end)
                        needed = following == ","
                        at = _behind_blanks(text, end) + 1 if needed else end
                        line += text.count("\n", end, at)
                        if at > _PIECE:
                            text, at = text[at:], 0
                except RepeatedKey:
                    raise
                except (ValueError, IndexError) as error:
                    more = file.read(max(_PIECE, len(text)))
                    if not more and isinstance(error, IndexError) and not inside:
                        return
                    if not more:
                        raise refuse(reason(error), expected, where) from None
                    text, at = text[at:] + more, 0
    except (OSError, UnicodeDecodeError, RecursionError, RepeatedKey) as error:
        raise refuse(reason(error), expected, where) from None


def check_spelling(record: Mapping[str, Any], known: tuple[str, ...], refuse: Refuse, where: str) -> None:
    """Refuse a record with a key that nearly is one of `known`, which it lacks: its value would not be seen."""
    if (slip := _misspelled(tuple(record), known)) is not None:
        raise refuse(f"it has {slip[0]!r} and no {slip[1]!r}", f"{slip[1]!r}, or another name for what it holds", where)


@lru_cache(maxsize=1024)
def _misspelled(keys: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, str] | None:
    lacking = {_plain(name): name for name in known if name not in keys}
    for key in keys:
        if key not in known and (close := get_close_matches(_plain(key), lacking, n=1, cutoff=_NEAR)):
            return key, lacking[close[0]]
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.casefold()).strip("_")


def _behind_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def reason(error: Exception) -> str:
    """An error of reading, for a message."""
    if isinstance(error, IndexError):
        return "it ends too early"
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
