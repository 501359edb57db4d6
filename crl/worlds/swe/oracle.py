"""The reference fix as calls of the tools, and what an episode teaches: for demonstrations.

The calls are also proof that a task can be solved with the tools.

Each file is looked at where it is changed, then edited; what the editor cannot do (remove, move to another mode, a file
that is no text) is done by the shell. At the end it submits.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from crl.protocols import Lesson
from crl.records import Episode, Turn
from crl.worlds.sandbox.bubblewrap import TESTBED
from crl.worlds.swe.calls import BASH, EDITOR, SUBMIT, BadCall, Call, call_of
from crl.worlds.swe.editor import LARGEST
from crl.worlds.swe.patches import hunks, touched

_AROUND = 8
"""Lines before and behind a change that are looked at."""
_PART = 90_000
"""Characters of base64 in one command, which has to be shorter than `calls.LONGEST_COMMAND`; a multiple of four."""
_CHANGING = ("create", "str_replace", "insert")


def calls_of(patch: str, base: Path, fixed: Path, max_calls: int) -> list[Call]:
    """The tool calls that turn a base tree into the fixed one, then `submit`.

    With more than `max_calls` of them, those that only look at files are left out; the list may still be longer.
    """
    paths = sorted(touched(patch))
    for looking in (True, False):
        calls = [call for path in paths for call in _file(path, base / path, fixed / path, looking=looking)]
        if len(calls) < max_calls:
            break
    return [*calls, Call(SUBMIT, {})]


def _file(path: str, old: Path, new: Path, *, looking: bool) -> Iterator[Call]:
    where = f"{TESTBED}/{path}"
    named = shlex.quote(path)
    before, after = _text(old), _text(new)
    if not os.path.lexists(new):
        if os.path.lexists(old):
            yield Call(BASH, {"command": f"rm -f -- {named}"})
        return
    if new.is_symlink():
        folder = shlex.quote(str(Path(path).parent))
        yield Call(BASH, {"command": f"mkdir -p -- {folder} && ln -sfn -- {shlex.quote(str(new.readlink()))} {named}"})
        return
    if after is None or (before is None and os.path.lexists(old)):
        content = base64.b64encode(new.read_bytes()).decode()
        folder = shlex.quote(str(Path(path).parent))
        parts = [content[at : at + _PART] for at in range(0, len(content), _PART)] or [""]
        yield Call(BASH, {"command": f"mkdir -p -- {folder} && rm -f -- {named} && base64 -d > {named} <<< {parts[0]}"})
        for part in parts[1:]:
            yield Call(BASH, {"command": f"base64 -d >> {named} <<< {part}"})
    elif before is None:
        yield Call(EDITOR, {"command": "create", "path": where, "file_text": after})
    else:
        yield from _edits(where, before, after, looking=looking)
    if _executable(new) != _executable(old):  # what is not there yet is not executable
        yield Call(BASH, {"command": f"chmod {'+x' if _executable(new) else '-x'} -- {named}"})


def _edits(where: str, before: str, after: str, *, looking: bool) -> Iterator[Call]:
    """Replacements that make one text the other, each of a text that is there exactly once when it is replaced."""
    old, new = _lines(before), _lines(after)
    done: list[str] = []
    """The lines that are final, up to where `old` goes on."""
    at = 0
    for first, last, begin, end in hunks(before, after):
        done += old[at:first]
        at = first
        current = "".join([*done, *old[at:]])
        if not current:
            yield Call(
                EDITOR, {"command": "insert", "path": where, "insert_line": 0, "new_str": "".join(new[begin:end])}
            )
        else:
            if looking:
                shown = [
                    max(1, len(done) + 1 - _AROUND),
                    min(current.count("\n") + 1, len(done) + last - first + _AROUND),
                ]
                if shown[0] <= current.count("\n"):
                    yield Call(EDITOR, {"command": "view", "path": where, "view_range": shown})
            yield _replacement(where, current, done, old[first:last], old[last:], new[begin:end])
        done += new[begin:end]
        at = last


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _replacement(where: str, text: str, head: list[str], out: list[str], tail: list[str], into: list[str]) -> Call:
    """Replace lines between others, with as much of what is around as makes them be there once."""
    around = 0 if out else 1
    shown = text.replace("\r\n", "\n")  # what the editor looks in
    while True:
        left, right = head[max(0, len(head) - around) :], tail[:around]
        old = "".join([*left, *out, *right])
        if _once(shown, old.replace("\r\n", "\n")):
            return Call(
                EDITOR,
                {"command": "str_replace", "path": where, "old_str": old, "new_str": "".join([*left, *into, *right])},
            )
        around += max(1, around // 2)  # among many equal lines, all of them are needed


def _once(text: str, old: str) -> bool:
    at = text.find(old)
    return at >= 0 and text.find(old, at + 1) < 0


def _text(path: Path) -> str | None:
    """The text of a file that the editor can take; None where it is none."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_size > LARGEST:
            return None
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _executable(path: Path) -> bool:
    return os.path.lexists(path) and bool(path.lstat().st_mode & stat.S_IXUSR)


def lesson_of(episode: Episode, turns: Sequence[Turn], *, as_text: bool) -> Lesson:
    """What an episode teaches, in sentences that are true of it.

    A new experience, a better one than guided it, or nothing where that one was enough.
    """
    if episode.success and episode.guided:
        return Lesson("return")
    calls = [call for turn in turns if turn.valid and (call := _call(turn.action, as_text)) is not None]
    edits = [call for call in calls if call.name == EDITOR and call.arguments["command"] in _CHANGING]
    viewed = any(call.name == EDITOR and call.arguments["command"] == "view" for call in calls)
    submitted = any(call.name == SUBMIT for call in calls)
    if not calls:
        text = "Call one tool per turn, in the form that is asked for: nothing else is done."
    elif episode.success:
        path = str(edits[-1].arguments["path"]).rsplit("/", 1)[-1] if edits else ""
        first = "View the code that the report is about" + (f" ({path})" if path else "")
        text = f"{first}, change only what is wrong, then submit."
    elif not edits and not any(call.name == BASH for call in calls):
        text = "Nothing was changed: repair the code with str_replace before you submit."
    elif not submitted:
        text = "Call submit as soon as the repair is made: without it nothing is graded."
    elif not viewed:
        text = "View the whole function that the report names before you change it: hidden tests try all it promises."
    else:
        text = "Try the example of the report and its edge cases before you submit: hidden tests go beyond it."
    return Lesson("update" if episode.guided else "add", text)


def _call(action: str | None, as_text: bool) -> Call | None:
    try:
        return call_of(action, as_text=as_text)
    except BadCall:
        return None
