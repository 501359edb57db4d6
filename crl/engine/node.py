"""One machine of an engine on several: runs the command it is sent, and ends it when whoever sent it is gone.

Started by path with nothing but the standard library, through ssh for instance: `crl/engine/launch.py` writes one line
of JSON to its standard input, keeps that open and sends an empty line every few seconds. The end of the input means
that the connection or the engine ended; silence, that the machine over there or the way to it is gone, which nothing
else tells.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the order on the first line of the input; returns the command's exit code as a shell does."""
    order = json.loads(sys.stdin.readline())
    os.chdir(order["directory"])
    # Its own session: what it starts is ended with it.
    process = subprocess.Popen(
        order["command"],
        env={**os.environ, **order["environment"]},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=_end_with_input, args=(process, float(order["silence"])), daemon=True).start()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _end_with_input(process: subprocess.Popen[bytes], silence: float) -> None:
    """End the process once the input has ended, or has been silent for so many seconds."""
    lines = queue.SimpleQueue[str]()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    with contextlib.suppress(queue.Empty):
        while lines.get(timeout=silence):
            pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read(lines: queue.SimpleQueue[str]) -> None:
    while line := sys.stdin.readline():
        lines.put(line)
    lines.put("")


if __name__ == "__main__":
    sys.exit(main())
