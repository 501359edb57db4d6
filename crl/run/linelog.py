"""Append-only JSON-lines files whose lines vouch for the one before: damage is found, a torn last line is survived.

Each line holds its payload and `check`, the SHA-256 over the previous line's check and the payload. A process that
dies in the middle of an append leaves a torn last line: readers ignore it, the next append keeps it as an event of its
own. The files lie beside the record (journal, list of pruned checkpoints) and are in no digest.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.run.files import canonical_json, disk_full_as_error, fsync, sha256_bytes, write_atomically

_START = "0" * 64


@dataclass(frozen=True)
class Head:
    """How far a log reached at some moment: later it may be longer, never shorter or different."""

    bytes: int
    check: str


@dataclass(frozen=True)
class Fault:
    """What is wrong with a log."""

    expected: str
    found: str


@dataclass(frozen=True)
class _Line:
    payload: dict[str, Any] | None
    check: str
    text: str
    sound: bool


class LineLog:
    """One such file. Appending is safe from several processes; reading needs no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, payload: Mapping[str, Any]) -> None:
        """Append one line and sync it. Raises DiskFull."""
        with disk_full_as_error(self.path):
            created = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                content = self._content()
                whole, torn = content[: content.rfind(b"\n") + 1], content[content.rfind(b"\n") + 1 :]
                last, text = _last_check(whole), b""
                if torn:
                    last, text = _render(last, {"event": "torn_line", "text": torn.decode(errors="replace")})
                text += _render(last, payload)[1]
                os.ftruncate(descriptor, len(whole))
                try:
                    _write_all(descriptor, text, len(whole))
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, len(whole))
                    raise
            finally:
                os.close(descriptor)
            if created:
                fsync(self.path.parent)

    def read(self) -> list[dict[str, Any]]:
        """Payloads of all readable lines in order; a torn or damaged line is left out (see :meth:`fault`)."""
        content = self._content()
        lines = (_load(raw) for raw in content[: content.rfind(b"\n") + 1].splitlines())
        return [payload for payload, _ in lines if payload is not None]

    def head(self) -> Head:
        """How far the log reaches now."""
        content = self._content()
        end = content.rfind(b"\n") + 1
        return Head(end, _last_check(content[:end]))

    def fault(self, head: Head | None = None) -> Fault | None:
        """What is wrong with the file, if anything; `head` is how far it is known to have reached."""
        content = self._content()
        end = content.rfind(b"\n") + 1
        if head is not None and head.bytes:
            expected = f"at least {head.bytes} bytes with check {head.check}"
            if not self.path.exists():
                return Fault(expected, "no such file")
            if len(content) < head.bytes:
                return Fault(expected, f"{len(content)} bytes")
            reached = _last_check(content[: head.bytes])
            if reached != head.check:
                return Fault(expected, f"check {reached or 'unreadable'}")
        for number, line in enumerate(_parse(content[:end]), start=1):
            if not line.sound:
                return Fault(f"line {number} to follow from the line before it", line.check or "an unreadable line")
        if end < len(content):
            return Fault("whole lines", f"a torn last line of {len(content) - end} bytes")
        return None

    def repair(self, head: Head | None, aside: Path) -> Fault | None:
        """Mend what :meth:`fault` finds: the damaged file is copied to `aside`, its readable lines are chained anew.

        Returns the fault that was mended, None if there was none.
        """
        fault = self.fault(head)
        if fault is None:
            return None
        content = self._content()
        if content:
            aside.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(aside, content)
        payloads: list[dict[str, Any]] = []
        for line in _parse(content):
            payloads.append(line.payload or {"event": "unreadable_line", "text": line.text})
        payloads.append({"event": "repaired", "expected": fault.expected, "found": fault.found})
        check, text = _START, b""
        for payload in payloads:
            check, rendered = _render(check, payload)
            text += rendered
        write_atomically(self.path, text)
        return fault

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""


def _render(previous: str, payload: Mapping[str, Any]) -> tuple[str, bytes]:
    # Through JSON once, so that what is checked is what a reader will parse (tuples become lists, keys strings).
    plain = json.loads(json.dumps(dict(payload), default=str))
    check = sha256_bytes(previous.encode() + canonical_json(plain))
    return check, json.dumps({**plain, "check": check}, ensure_ascii=False).encode() + b"\n"


def _parse(content: bytes) -> list[_Line]:
    lines, previous = [], _START
    for raw in content.splitlines(keepends=True):
        text = raw.decode(errors="replace").rstrip("\n")
        payload, check = _load(raw)
        if payload is None:
            lines.append(_Line(None, "", text, sound=False))
            previous = ""
            continue
        # After an unreadable line the chain cannot be followed: that line is reported, the next one starts anew.
        follows = previous == "" or _render(previous, payload) == (check, raw)
        lines.append(_Line(payload, check, text, sound=follows))
        previous = check
    return lines


def _load(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    """(payload, check) of a line; (None, "") if it cannot be read."""
    try:
        payload = json.loads(raw)
        check = str(payload.pop("check"))
    except (ValueError, KeyError, AttributeError, TypeError):
        return None, ""
    return payload, check


def _last_check(whole: bytes) -> str:
    """Check of the last of some whole lines: what the next one follows from. Long logs are not read through for it."""
    if not whole:
        return _START
    return _load(whole[whole.rfind(b"\n", 0, -1) + 1 :])[1]


def _write_all(descriptor: int, text: bytes, offset: int) -> None:
    while text:
        written = os.pwrite(descriptor, text, offset)
        text, offset = text[written:], offset + written
