"""A process of `make ui`: started with its output in a file, watched, ended together with its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_LINES = 25


class Child:
    """One process. Its own session: Ctrl-C in the terminal reaches `make ui` alone, which ends it in order.

    Args:
        name: what it is called on the screen.
        command: its command line.
        environment: the whole of its environment.
        log: file for its output; what an earlier start wrote is kept beside it once, with the suffix `.1`.
        folder: its working directory.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
    ) -> None:
        self.name, self.log = name, log
        self._command, self._environment, self._folder = list(command), dict(environment), folder
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_name(f"{log.name}.1"))

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def age_seconds(self) -> float:
        """Time since it was started."""
        return time.monotonic() - self._began

    def start(self) -> None:
        """Start it (again). Its output goes to the end of the log."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._began = time.monotonic()

    def stop(self, patience_seconds: float) -> None:
        """SIGTERM, and SIGKILL to its whole group where that was not enough; returns when it has ended."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_seconds)
        # Also where it has ended: a child of it may have stayed behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def last_lines(self) -> str:
        """The end of its log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
