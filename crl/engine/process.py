"""The supervisor of child processes: starts one with its output kept, watches it, ends it with what it started.

Engines, the parts of `make ui`, the runs of a study and the commands of flows are such processes. Each is the leader of
a session of its own: Ctrl-C in a terminal reaches only this process, which ends its children in order. What a kill of
this process would leave behind is ended by the guardian. Environments have their own (`crl/envs/isolated.py`,
`crl/worlds/sandbox/supervised.py`), for limits on single calls and commands.

What a child writes is read line by line. Lines and answers of an engine come in two ways, and a line may lag behind the
answer to the job that wrote it. So a worker ends the output of a job with a mark (:func:`mark_end`), and the supervisor
waits for it: a line is passed on while its stage, and its part, still run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from crl.run.files import machine_digest
from crl.run.guardian import MARK, SHARED_MEMORY, guard, short

_LAST_LINES_SECONDS = 10.0
"""For output that is under way when the process has ended; a child of it that lives on may hold it open for longer."""
_MARK = "\x1e"
"""ASCII's record separator: text has no use for it."""
_LINES_KEPT = 60
LINE_LENGTH = 2000
"""What is kept of a line."""
_FOLDER = re.compile(r"crl-engine-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-")
_DAY = 86_400.0
_TICK_SECONDS = 0.02

OnLine = Callable[[str], None]


class ProcessGroup:
    """One process and what it starts. It can be started again after it ended.

    Args:
        command: its command line.
        name: what people call it.
        environment: added to the environment of this process.
        folder: its working directory; default that of this process.
        log: file for its output; what an earlier start wrote is kept beside it once, with the suffix `.1`.
        on_line: called with every line of its output, where there is no log; without either the output is inherited.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str = "process",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        log: Path | None = None,
        on_line: OnLine | None = None,
    ) -> None:
        self.name, self.log = name, log
        self.output: ProcessOutput | None = None
        """Reads its output for `on_line`."""
        self._command, self._environment = list(command), dict(environment or {})
        self._folder, self._on_line = folder, on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._left = False
        self._began = 0.0
        if log is not None:
            with contextlib.suppress(FileNotFoundError):
                log.replace(log.with_name(f"{log.name}.1"))

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id; None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, a signal as a negative number; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def age_seconds(self) -> float:
        """Time since it was started."""
        return time.monotonic() - self._began

    def start(self) -> None:
        """Start it. Its output goes to the end of the log, or line by line to `on_line`."""
        mark = guard()
        with contextlib.ExitStack() as stack:
            log = None if self.log is None else stack.enter_context(self.log.open("ab"))
            piped = log is None and self._on_line is not None
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**os.environ, **self._environment, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=subprocess.STDOUT if piped or log is not None else None,
                start_new_session=True,
            )
        if self._process.stdout is not None:
            self.output = ProcessOutput(self._process.stdout, self._on_line)
        self._left, self._began = False, time.monotonic()

    def wait(self, seconds: float | None = None) -> int | None:
        """Until it has ended and its output was read; its exit code, or None where so many seconds passed before."""
        if self._process is None:
            return None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        if self.output is not None:
            self.output.join(_LAST_LINES_SECONDS)
        return code

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), from any thread; does not wait."""
        if self._process is not None:
            self._process.terminate()

    def cancel(self) -> None:
        """Kill the whole group, from any thread; does not wait."""
        process = self._process
        if process is None or self._left:
            return
        # Also where it has ended: a child of it may have stayed behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the whole group; returns when it has ended."""
        self.cancel()
        if self._process is not None:
            self._process.wait()
            self._left = True
            if self.output is not None:
                self.output.join(1.0)

    def stop(self, patience_seconds: float, *, whole: bool = False) -> None:
        """Ask it to end, or the `whole` group, and kill what is left of the group after so many seconds; returns when
        it has ended."""
        until = time.monotonic() + patience_seconds
        self.terminate()
        if self.running and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_seconds)
        if whole and self._process is not None and not self._left:
            # Python's trackers in it remove what its processes had in shared memory, once these have ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)
                while time.monotonic() < until:
                    os.killpg(self._process.pid, 0)
                    time.sleep(_TICK_SECONDS)
        self.kill()

    def last_lines(self, count: int) -> list[str]:
        """The newest lines of its output, oldest first."""
        if self.log is None:
            return [] if self.output is None else self.output.last(count)
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
        except OSError:
            return []


def describe_exit(code: int | None) -> str:
    """An exit code in words: a negative one is a signal."""
    if code is None:
        return "closed its connection"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with exit code {code}"


def mark_end(number: int) -> None:
    """In the worker, whose `number`-th job is done: the mark comes after everything it wrote."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # whatever a stage put in their place
            stream.flush()
    with contextlib.suppress(OSError):  # closed by a stage: then there is nothing to wait for
        os.write(1, f"\n{_MARK}{number}\n".encode())


class ProcessOutput:
    """Reads the output of one process in a thread until it ends, keeps its last lines and hands every line on."""

    def __init__(self, stream: IO[bytes], on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._marked = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(stream,), name="process-output", daemon=True)
        self._reader.start()

    def last(self, count: int) -> list[str]:
        """The newest lines, oldest first."""
        return list(self._lines)[-count:]

    def tell(self, text: str) -> None:
        """Keep the beginning of a line and hand it on whole."""
        self._lines.append(text[:LINE_LENGTH])
        if self._on_line is not None:
            with contextlib.suppress(Exception):  # whoever watches must not stop the reading
                self._on_line(text)

    def wait_for(self, number: int, seconds: float) -> None:
        """Until every line of the job of this number was handed on, the output ended, or this many seconds passed."""
        with self._news:
            self._news.wait_for(lambda: self._marked >= number, seconds)

    def join(self, seconds: float) -> None:
        """Until the output has ended, or this many seconds passed: a child that lives on may hold it open."""
        self._reader.join(seconds)

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for content in stream:
                for text in re.split(r"[\r\n]+", content.decode(errors="replace")):
                    if text.startswith(_MARK) and text[1:].isdecimal():
                        self._pass(int(text[1:]))
                    elif text.strip():
                        self.tell(text)
        self._pass(sys.maxsize)

    def _pass(self, number: int) -> None:
        with self._news:
            self._marked = number
            self._news.notify_all()


def shared_memory(size: int) -> Path | None:
    """The folder of the machine's shared memory, where it has so much room."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(SHARED_MEMORY).free > size:
            return SHARED_MEMORY
    return None


def own_folder(parent: Path | None = None) -> Path:
    """A new folder that only this user may enter. Those of processes that were killed are removed: exported weights are
    as large as the model. Another machine's process (or container's, in a `parent` that they share) counts as gone once
    its folder has not been touched for a day; elsewhere, what is older than this machine's start has no process."""
    root = parent or Path(tempfile.gettempdir())
    for left in root.glob("crl-engine-*"):
        if _left_behind(left, shared=parent is not None):
            shutil.rmtree(left, ignore_errors=True)
    name = f"crl-engine-{machine_digest()}-{os.getpid()}-{short(guard())}-"
    return Path(tempfile.mkdtemp(prefix=name, dir=root))


def _left_behind(folder: Path, *, shared: bool) -> bool:
    match = _FOLDER.match(folder.name)
    if match is None:
        return False
    if match["machine"] == machine_digest():
        return not psutil.pid_exists(int(match["pid"]))
    with contextlib.suppress(OSError):  # removed meanwhile
        touched = folder.lstat().st_mtime
        return time.time() - touched > _DAY if shared else touched < psutil.boot_time()
    return False
