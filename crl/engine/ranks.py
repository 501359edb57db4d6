"""The launcher of ranks, `python -m crl.engine.ranks`: starts them, and ends all where one fails.

torch's own launcher is not used: where its ranks meet is a store that listens on every address of the machine and
unpickles what it is sent. Ours opens none (`crl/learn/process_group.py` says where ranks meet), and it ends with the
supervisor that started it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from crl.run.guardian import PARENT, end_with_parent


def main() -> int:
    """Start the ranks of this machine and wait for them; the first exit code that is not 0, as a shell gives it."""
    parser = argparse.ArgumentParser(prog="python -m crl.engine.ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, required=True, help="on all machines")
    parser.add_argument("--first", type=int, default=0, help="number of the first one here")
    parser.add_argument("--here", type=int, help="how many of them are on this machine (default: all)")
    parser.add_argument("command", nargs="+", help="what python runs as a rank")
    chosen = parser.parse_args()
    here = chosen.here or chosen.ranks
    end_with_parent()
    sizes = {"WORLD_SIZE": str(chosen.ranks), "LOCAL_WORLD_SIZE": str(here), PARENT: str(os.getpid())}
    started: dict[int, subprocess.Popen[bytes]] = {}
    for local in range(here):
        rank = {"RANK": str(chosen.first + local), "LOCAL_RANK": str(local)}
        process = subprocess.Popen([sys.executable, *chosen.command], env={**os.environ, **sizes, **rank})
        started[process.pid] = process
    while started:
        pid, status = os.wait()
        if started.pop(pid, None) is not None and (code := os.waitstatus_to_exitcode(status)):
            for process in started.values():
                process.kill()
            return code if code > 0 else 128 - code
    return 0


if __name__ == "__main__":
    sys.exit(main())
