"""The program of an episode as a process: how it is started, what it wrote, and that nothing of it stays.

All that it starts is below one process (`reaper`, or the first one of a sandbox), whose end is that of all. Its output
is read to the end and only the last of it is kept: a program that floods it costs no memory. What its processes use
together is looked at once a second, where it has a limit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from crl.protocols import Program
from crl.text.unicode import valid_text

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

    def __init__(self, program: Program, folder: Path, variables: Mapping[str, str], ended: Callable[[], None]) -> None:
        """`variables`: beside the program's own. `ended` is called, in a thread, when the program has ended.

        Raises OSError where it cannot be started.
        """
        self._watch, self._output, self.broke = program.watch, bytearray(), ""
        isolated = program.port is not None  # everything ends with the first process of a sandbox
        path = {**os.environ, **program.variables}.get("PATH")
        if shutil.which(program.command[0], path=path) is None:
            raise FileNotFoundError("there is no such program")
        reaper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py")), str(os.getpid())]
        self._process = subprocess.Popen(
            [*([] if isolated else reaper), *program.command], cwd=None if isolated else folder,
            env={**({} if isolated else os.environ), **program.variables, **variables},
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
        deadline = time.monotonic() + _ENDS
        while (below := self._below()) and time.monotonic() < deadline:  # one may start another meanwhile
            for process in below:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(below, timeout=0.2)
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        self._reader.join(_ENDS)

    @property
    def output(self) -> str:
        """The last that it wrote."""
        return valid_text(bytes(self._output).decode("utf-8", "replace")).strip()

    def _below(self) -> list[psutil.Process]:
        """The processes that it started, and these."""
        try:
            found = psutil.Process(self._process.pid).children(recursive=True)
            return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

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
            self.broke = self._watch([process.pid for process in self._below()])
        if self.broke:
            self.end()
        self._process.wait()
        ended()


def remove(folder: Path) -> None:
    """Remove the folder of a program, whatever modes it gave its folders."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir() and not folder.is_symlink():
        subprocess.run(["chmod", "-R", "u+rwX", str(folder)], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
