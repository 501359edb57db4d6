"""A command run to its end, or to the first limit that it breaks: nothing of it is left afterwards.

Its output is read while it runs and kept in bounded memory. A watch looks at its memory and at the work tree a few
times a second; the limits of one process (`RLIMIT_*`) are set by who starts it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crl.text.unicode import valid_text
from crl.worlds.sandbox.limits import MEGABYTE, Ended, Limits
from crl.worlds.sandbox.usage import Clock, Watched

_LOOK = 0.2
"""Seconds between two looks at what a command uses."""
_PIECE = 1 << 16
LONGEST_REPORT = 16 * MEGABYTE
_ENDS = 20.0
"""Seconds that killed processes have to disappear in."""
_WIDEST = 4
"""Most bytes of a character."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command."""

    output: str
    """Standard output and errors, in the order they were written; the middle of a long one is left out."""
    code: int
    """Exit status; 128 + n where signal n ended it."""
    ended: Ended = ""
    report: bytes = b""
    """What was written to the report, where there was one."""


@dataclass
class Launch:
    """How a command is started, found and ended."""

    argv: Sequence[str]
    env: Mapping[str, str]
    members: Callable[[int], list[int]]
    """The ids of all its processes, from that of the one that was started."""
    end: Callable[[int], None]
    """Kill all its processes, from the id of the one that was started."""
    owner: int | None = None
    """User and group that it runs as; None: ours."""
    cwd: str = "/"
    pass_fds: tuple[int, ...] = ()
    counted: bool = False
    """Whether its processes are counted here, because nothing else limits their number."""
    started: Callable[[], None] = field(default=lambda: None)
    """Called when it was started: closes what only the command needs."""


def supervise(
    launch: Launch,
    limits: Limits,
    watched: Watched,
    *,
    longest: int,
    stdin: bytes = b"",
    report: tuple[int, int] | None = None,
) -> Ran:
    """Run a command to its end. `report`: read and write end of a pipe that it may write to; both are closed here.

    Raises OSError where it cannot be started.
    """
    who: dict[str, Any] = {}
    if launch.owner is not None:
        who = {"user": launch.owner, "group": launch.owner, "extra_groups": []}
    passed = launch.pass_fds + (() if report is None else (report[1],))
    try:
        process = subprocess.Popen(
            launch.argv, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=dict(launch.env), cwd=launch.cwd, pass_fds=passed,
            start_new_session=True, **who,
        )  # fmt: skip
    except BaseException:
        for end in report or ():
            os.close(end)
        raise
    finally:
        launch.started()
    try:
        if report is not None:
            os.close(report[1])
        return _Supervision(process, launch, limits, watched, longest).run(stdin, None if report is None else report[0])
    finally:
        if process.poll() is None:  # an exception, Ctrl-C among them
            _end(launch, process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if report is not None:
            os.close(report[0])


class _Supervision:
    def __init__(
        self, process: subprocess.Popen[bytes], launch: Launch, limits: Limits, watched: Watched, longest: int
    ) -> None:
        self._process, self._launch, self._limits = process, launch, limits
        self._output, self._report = Output(longest), bytearray()
        self._watched = watched
        self._selector = selectors.DefaultSelector()
        self._stdin = b""

    def run(self, stdin: bytes, report: int | None) -> Ran:
        process, clock = self._process, Clock(self._limits.seconds)
        ended: Ended = ""
        exited = os.pidfd_open(process.pid)
        try:
            self._register(stdin, report, exited)
            looked = time.monotonic()
            while process.poll() is None:
                self._read(max(0.0, min(_LOOK, clock.left())))
                if self._output.total > self._limits.output_mb * MEGABYTE or len(self._report) > LONGEST_REPORT:
                    ended = "output"
                elif clock.left() <= 0 and not clock.wait_of(self._launch.members(process.pid)):
                    ended = "time"
                elif time.monotonic() - looked >= _LOOK:
                    looked = time.monotonic()
                    members = self._launch.members(process.pid)
                    clock.wait_of(members)
                    many = self._launch.counted and len(members) > self._limits.processes
                    ended = "processes" if many else self._watched.look(members)
                if ended:
                    break
            _end(self._launch, process)
            self._drain()
        finally:
            self._selector.close()
            os.close(exited)
        code = process.returncode
        ended = ended or self._watched.look([])
        return Ran(self._output.text(), 128 - code if code < 0 else code, ended, bytes(self._report))

    def _register(self, stdin: bytes, report: int | None, exited: int) -> None:
        assert self._process.stdout is not None
        self._selector.register(exited, selectors.EVENT_READ, None)
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._output.add)
        os.set_blocking(self._process.stdout.fileno(), False)
        if report is not None:
            os.set_blocking(report, False)
            self._selector.register(report, selectors.EVENT_READ, self._report.extend)
        if stdin and self._process.stdin is not None:
            self._stdin = stdin
            os.set_blocking(self._process.stdin.fileno(), False)
            self._selector.register(self._process.stdin, selectors.EVENT_WRITE, None)

    def _read(self, timeout: float) -> bool:
        """Take what there is; whether there was anything."""
        anything = False
        for key, events in self._selector.select(timeout):
            if events & selectors.EVENT_WRITE:
                self._write(key.fileobj)
            elif key.data is not None:
                try:
                    piece = os.read(key.fd, _PIECE)
                except BlockingIOError:
                    continue
                if piece:
                    key.data(piece)
                    anything = True
                else:
                    self._selector.unregister(key.fileobj)
        return anything

    def _write(self, pipe: Any) -> None:
        try:
            self._stdin = self._stdin[os.write(pipe.fileno(), self._stdin) :]
        except BlockingIOError:
            return
        except OSError:  # nobody reads it
            self._stdin = b""
        if not self._stdin:
            self._selector.unregister(pipe)
            pipe.close()

    def _drain(self) -> None:
        """What was written before the end: at most what the pipes hold, for nobody writes any more."""
        while self._output.total <= self._limits.output_mb * MEGABYTE and self._read(0):
            pass


def _end(launch: Launch, process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a command, and wait for it."""
    if process.poll() is None:
        launch.end(process.pid)
        try:
            process.wait(_ENDS)
        except subprocess.TimeoutExpired:  # in the kernel: nothing more can be done about it
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
    else:
        launch.end(process.pid)


class Output:
    """Bytes as they come; at most `longest` characters of them are shown."""

    def __init__(self, longest: int) -> None:
        self._longest, self._room = longest, longest * _WIDEST
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total = 0
        """Bytes so far."""

    def add(self, piece: bytes) -> None:
        """Take what was written; what is in the middle is forgotten."""
        self.total += len(piece)
        fits = self._room - len(self._head)
        if fits > 0:
            self._head += piece[:fits]
            piece = piece[fits:]
        if piece:
            self._tail.append(piece[-self._room :])
            self._tail_bytes += len(self._tail[-1])
            while self._tail_bytes - len(self._tail[0]) >= self._room:
                self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """What is shown. Bytes that are no UTF-8 are U+FFFD."""
        tail = b"".join(self._tail)
        left_out = self.total - len(self._head) - len(tail)
        if left_out == 0:
            return cut(_decoded(bytes(self._head) + tail), self._longest)
        half = self._longest // 2
        first, last = _decoded(bytes(self._head))[:half], _decoded(tail)[-half:]
        return f"{first}\n[… about {self.total - len(first) - len(last)} characters left out …]\n{last}"


def cut(text: str, longest: int) -> str:
    """A text of at most `longest` characters and a note: its middle is left out where it is longer."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[len(text) - half :]}"


def _decoded(content: bytes) -> str:
    return valid_text(content.decode("utf-8", errors="replace"))
