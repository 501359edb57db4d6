"""The program of an episode as a process: how it is started, what it wrote, and that nothing of it stays.

It has a session of its own, which is killed at its end with every process that carries its mark in the environment.
Its output is read to the end and only the last of it is kept: a program that floods it costs no memory. What its
processes use together is looked at once a second, where it has a limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from crl.protocols import Program
from crl.text.unicode import valid_text

MARK = "CRL_PROGRAM"
KEPT = 8000
"""Bytes of what a program wrote that are kept: the last."""
_ENDS = 10.0
"""Seconds until what was killed has ended."""
_LOOK = 1.0
"""Seconds between two looks at what its processes use."""


class ProgramProcess:
    """A running program.

    Attributes:
        broke: the limit of its processes that it was killed at, in words; empty: none.
    """

    def __init__(
        self, program: Program, folder: Path, variables: Mapping[str, str], mark: str, ended: Callable[[], None]
    ) -> None:
        """`variables`: beside the program's own. `mark`: no other process has it. `ended` is called, in a thread, when
        the program has ended.

        Raises OSError where it cannot be started.
        """
        self._mark, self._watch = mark, program.watch
        self._output, self.broke = bytearray(), ""
        self._process = subprocess.Popen(
            program.command, cwd=folder if program.port is None else None,
            env={**(os.environ if program.port is None else {}), **program.variables, **variables, MARK: mark},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            user=program.user, group=program.user, extra_groups=None if program.user is None else [],
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="program output", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, args=(ended,), name="program end", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def end(self) -> None:
        """Kill it and all that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + _ENDS
        while (alive := self._alive()) and time.monotonic() < deadline:  # one may start another meanwhile
            for process in alive:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(alive, timeout=0.2)
        self._process.wait()
        self._reader.join(_ENDS)

    @property
    def output(self) -> str:
        """The last that it wrote."""
        return valid_text(bytes(self._output).decode("utf-8", "replace")).strip()

    def _alive(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while piece := os.read(pipe.fileno(), 1 << 16):
                self._output += piece
                del self._output[:-KEPT]

    def _wait(self, ended: Callable[[], None]) -> None:
        while self._watch is not None and not self.broke:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK)
                break
            self.broke = self._watch([process.pid for process in self._alive()])
        if self.broke:
            self.end()
        self._process.wait()
        ended()
