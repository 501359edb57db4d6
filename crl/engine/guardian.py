"""Ends what a killed process leaves behind: Prefect's temporary server, which would otherwise run on for ever.

Engines need none of this, they watch their connection. The guardian is one small process that waits for the other end
of a pipe to close: that happens when the guarded process ends, in whatever way. Then it ends every process that carries
the guarded one's mark in its environment, which children inherit. Nothing is written anywhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys

import psutil

MARK = "CRL_GUARDED_BY"
_PATIENCE_SECONDS = 2.0

_guardian: subprocess.Popen[bytes] | None = None


def guard() -> None:
    """From now on, whatever this process starts ends at the latest when this process does."""
    global _guardian
    if _guardian is not None and _guardian.poll() is None:
        return
    mark = secrets.token_hex(16)
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    # By path, so that it starts wherever the package lies. Its own session: Ctrl-C must not end it before its time.
    _guardian = subprocess.Popen(
        [sys.executable, "-P", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=unmarked,
        start_new_session=True,
    )
    os.environ[MARK] = mark


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _wait_and_end(mark: str) -> None:
    sys.stdin.buffer.read()
    for end in (psutil.Process.terminate, psutil.Process.kill):
        processes = _marked(mark)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                end(process)
        psutil.wait_procs(processes, timeout=_PATIENCE_SECONDS)


if __name__ == "__main__":
    _wait_and_end(sys.argv[1])
