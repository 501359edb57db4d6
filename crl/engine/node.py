"""One machine of an engine on several: runs the command it is sent, and ends it when whoever sent it is gone.

Started by path with nothing but the standard library, through ssh for instance: `crl/engine/nodes.py` writes one line
of JSON to its standard input and keeps that open. The end of the input means that the machine over there, the
connection or the engine ended.
"""

from __future__ import annotations

import contextlib
import json
import os
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
    threading.Thread(target=_end_with_input, args=(process,), daemon=True).start()
    code = process.wait()
    return code if code >= 0 else 128 - code


def _end_with_input(process: subprocess.Popen[bytes]) -> None:
    sys.stdin.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
