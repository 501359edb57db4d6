"""The tool `str_replace_editor`: files of a work tree viewed and edited by our own process, never outside the tree.

A path is walked one name at a time and every link in it is resolved by hand, as it leads in the sandbox; one that
leaves the tree, or leads to something that is no file, is refused. Nothing of the actor's runs meanwhile, so what was
looked at is what is opened.
"""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crl.worlds.sandbox.bubblewrap import TESTBED
from crl.worlds.sandbox.supervised import cut

LARGEST = 2_000_000
"""Bytes of the largest file that is viewed or edited."""
_LINKS = 40
_MOST_UNDONE = 50
_LISTED = 200
_NAMED = 20
"""Places that are named where a text is more than once."""
_AROUND = 4
"""Lines before and behind an edit that are shown."""
_CRLF = "[Lines of this file end with CR LF. Edits keep that: write plain line breaks.]"


class Refused(Exception):
    """Why an edit was not made, for the actor."""


class Editor:
    """Edits of one work tree."""

    def __init__(self, tree: Path, longest: int, owner: int | None) -> None:
        """`longest`: characters shown at one time; `owner`: whose new files are (None: ours)."""
        self._tree, self._longest, self._owner = tree, longest, owner
        self._before: dict[Path, list[bytes | None]] = defaultdict(list)

    def run(self, arguments: Mapping[str, Any]) -> str:
        """What a call shows. Raises Refused that says why nothing was done."""
        path = self.resolve(arguments["path"])
        named = self._named(path)
        match arguments["command"]:
            case "view":
                return self._view(path, named, arguments.get("view_range"))
            case "create":
                return self._create(path, named, _needed(arguments, "file_text"))
            case "str_replace":
                return self._replace(path, named, _needed(arguments, "old_str"), arguments.get("new_str", ""))
            case "insert":
                return self._insert(path, named, _needed(arguments, "insert_line"), _needed(arguments, "new_str"))
            case _:
                return self._undo(path, named)

    def _named(self, path: Path) -> str:
        return str(Path(TESTBED, path.relative_to(self._tree)))

    def resolve(self, name: str) -> Path:
        """The file or folder of this machine that a path of the sandbox names; there may be nothing at it.

        Raises Refused where that is outside the tree.
        """
        outside = Refused(f"{name[:200]} is not below {TESTBED}.")
        if "\0" in name or len(name) > 4000 or any(0xD800 <= ord(each) <= 0xDFFF for each in name):
            raise Refused("That is no path.")
        waiting = self._parts(name, outside)[::-1]
        at, links = self._tree, 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                if at == self._tree:
                    raise outside
                at = at.parent
                continue
            try:
                if not stat.S_ISLNK(os.lstat(at / part).st_mode):
                    at /= part
                    continue
                target = str((at / part).readlink())
            except FileNotFoundError:
                at /= part
                continue
            except OSError as error:
                raise Refused(f"{name[:200]}: {error.strerror}.") from None
            links += 1
            if links > _LINKS:
                raise Refused(f"{name[:200]} has too many links.")
            if target.startswith("/"):
                at = self._tree
                waiting += self._parts(target, outside)[::-1]
            else:
                waiting += [each for each in target.split("/") if each not in ("", ".")][::-1]
        return at

    def _parts(self, name: str, outside: Refused) -> list[str]:
        parts = [each for each in name.split("/") if each not in ("", ".")]
        if not name.startswith("/"):
            return parts
        if parts[:1] != [TESTBED.strip("/")]:
            raise outside
        return parts[1:]

    def _read(self, path: Path, named: str) -> str:
        try:
            return self._bytes(path, named).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(f"{named} is no text file (UTF-8).") from None

    def _bytes(self, path: Path, named: str) -> bytes:
        try:
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode):
                raise Refused(f"{named} is no file.")
            if found.st_size > LARGEST:
                raise Refused(f"{named} has {found.st_size} bytes, more than the editor takes.")
            return path.read_bytes()
        except FileNotFoundError:
            raise Refused(f"There is no file {named}.") from None
        except OSError as error:
            raise Refused(f"{named}: {error.strerror}.") from None

    def _write(self, path: Path, named: str, content: bytes | None, *, keep: bool = True) -> None:
        """Write a file, or remove it (None). Its bytes from before are kept for `undo_edit`."""
        before = self._bytes(path, named) if os.path.lexists(path) else None
        if content is not None and len(content) > LARGEST:
            raise Refused(f"{named} would have {len(content)} bytes, more than the editor takes.")
        try:
            if content is None:
                path.unlink(missing_ok=True)
            else:
                self._folders(path.parent)
                path.write_bytes(content)
                if before is None:
                    self._give(path)
        except OSError as error:
            raise Refused(f"{named}: {error.strerror}.") from None
        if keep:
            self._before[path] = [*self._before[path], before][-_MOST_UNDONE:]

    def _folders(self, folder: Path) -> None:
        missing = [each for each in (folder, *folder.parents) if each != self._tree and not os.path.lexists(each)]
        for each in reversed([each for each in missing if each.is_relative_to(self._tree)]):
            each.mkdir()
            self._give(each)

    def _give(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner, self._owner, follow_symlinks=False)

    def _view(self, path: Path, named: str, lines: list[int] | None) -> str:
        if path.is_dir() and not path.is_symlink():
            return self._listing(path, named)
        content = self._read(path, named)
        text = content.replace("\r\n", "\n").split("\n")
        if text[-1] == "" and len(text) > 1:
            text.pop()
        first, last = 1, len(text)
        if lines is not None:
            if len(lines) != 2:
                raise Refused("view_range is two line numbers: the first and the last, -1 for the end.")
            first, last = lines[0], len(text) if lines[1] == -1 else min(lines[1], len(text))
            if not 1 <= first <= last:
                raise Refused(f"view_range {lines} does not fit: {named} has {len(text)} lines.")
        shown = cut(_numbered(text[first - 1 : last], first), self._longest)
        return f"{shown}\n{_CRLF}" if "\r\n" in content else shown

    def _listing(self, path: Path, named: str) -> str:
        """Names in a folder and in those directly below it, hidden ones left out."""
        lines = [f"{named}/"]
        for entry in _entries(path):
            lines.append(f"  {entry.name}{'/' if entry.is_dir(follow_symlinks=False) else ''}")
            if entry.is_dir(follow_symlinks=False):
                lines += [
                    f"    {each.name}{'/' if each.is_dir(follow_symlinks=False) else ''}"
                    for each in _entries(Path(entry.path))
                ]
        more = [] if len(lines) <= _LISTED else [f"  … and {len(lines) - _LISTED} more"]
        return cut("\n".join(lines[:_LISTED] + more), self._longest)

    def _create(self, path: Path, named: str, text: str) -> str:
        if os.path.lexists(path):
            raise Refused(f"{named} exists. Edit it with str_replace or insert.")
        self._write(path, named, _encoded(text))
        return f"{named} is created."

    def _replace(self, path: Path, named: str, old: str, new: str) -> str:
        text = self._read(path, named)
        starts, length = _starts_as_shown(text, old) if "\r\n" in text else (_starts(text, old), len(old))
        if not starts:
            raise Refused(f"old_str is not in {named}: nothing was replaced. It has to match exactly, blanks included.")
        if len(starts) > 1:
            lines = ", ".join(str(text.count("\n", 0, at) + 1) for at in starts[:_NAMED])
            count = f"more than {_NAMED}" if len(starts) > _NAMED else str(len(starts))
            raise Refused(f"old_str is in {named} {count} times (lines {lines}): give more of what is around.")
        start = starts[0]
        new = _ended_as(text, start, new) if "\r" not in old else new
        self._write(path, named, _encoded(text[:start] + new + text[start + length :]))
        return self._edited(path, named, text.count("\n", 0, start) + 1, new)

    def _insert(self, path: Path, named: str, line: int, new: str) -> str:
        pieces = self._read(path, named).split("\n")
        lines = [f"{piece}\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
        if not 0 <= line <= len(lines):
            raise Refused(f"insert_line {line} does not fit: {named} has {len(lines)} lines.")
        if line and not lines[line - 1].endswith("\n"):
            lines[line - 1] += "\r\n" if lines[0].endswith("\r\n") else "\n"
        unended = line == len(lines) and (not lines or pieces[-1] != "")  # the file has no line break at its end
        piece = new if new.endswith("\n") or unended else new + "\n"
        piece = _ended_as("".join(lines[max(0, line - 1) :]), 0, piece)
        self._write(path, named, _encoded("".join([*lines[:line], piece, *lines[line:]])))
        return self._edited(path, named, line + 1, new)

    def _undo(self, path: Path, named: str) -> str:
        if not self._before[path]:
            raise Refused(f"There is no edit of {named} to take back.")
        self._write(path, named, self._before[path][-1], keep=False)
        self._before[path].pop()
        return f"The last edit of {named} is taken back."

    def _edited(self, path: Path, named: str, first: int, new: str) -> str:
        lines = self._read(path, named).replace("\r\n", "\n").split("\n")
        begin, end = max(1, first - _AROUND), first + new.count("\n") + _AROUND
        return cut(f"{named} is edited:\n{_numbered(lines[begin - 1 : end], begin)}", self._longest)


def _needed(arguments: Mapping[str, Any], name: str) -> Any:
    if name not in arguments:
        raise Refused(f"{arguments['command']} lacks {name}.")
    return arguments[name]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted((each for each in found if not each.name.startswith(".")), key=lambda each: each.name)
    except OSError:
        return []


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(lines, start=first))


def _ended_as(text: str, at: int, new: str) -> str:
    """A new text whose lines end as that line of a text does in which it is put; one with CR keeps its own."""
    end = text.find("\n", at)
    end = text.rfind("\n", 0, at) if end < 0 else end
    return new.replace("\n", "\r\n") if end > 0 and text[end - 1] == "\r" and "\r" not in new else new


def _starts_as_shown(text: str, old: str) -> tuple[list[int], int]:
    """Where a text begins in one with CR LF, as if these were LF; and how long it is there, the first time."""
    shown, old = text.replace("\r\n", "\n"), old.replace("\r\n", "\n")
    ends = [found.start() - number for number, found in enumerate(re.finditer("\r\n", text))]
    found = _starts(shown, old)
    starts = [at + bisect_left(ends, at) for at in found]
    return starts, found[0] + len(old) + bisect_left(ends, found[0] + len(old)) - starts[0] if found else 0


def _starts(text: str, old: str) -> list[int]:
    """Where a text begins in another, overlaps included: the first places, and one more than are named."""
    found: list[int] = []
    at = text.find(old) if old else -1
    while at >= 0 and len(found) <= _NAMED:
        found.append(at)
        at = text.find(old, at + 1)
    return found
