"""Runs a program and leaves nothing of it: `python reaper.py PARENT PROGRAM [ARGUMENT …]`.

What loses its parent becomes a child of this process, whatever session or environment it gave itself. When the program
ends, or the process PARENT, all of that is killed; then this one ends as the program did. It imports nothing of the
project, whose start would cost each program seconds.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_DEATH_SIGNAL, _DUMPABLE, _SUBREAPER = 1, 4, 36  # of prctl(2)


def _end_others() -> None:
    """Kill all that is below: the children of what is killed become ours."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):  # there is none any more
        while True:
            for pid in map(int, children.read_text(encoding="ascii").split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _parent_died(*_: object) -> None:
    _end_others()
    os._exit(1)


if __name__ == "__main__":
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _parent_died)
    prctl(_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # it died before
        sys.exit(1)
    # A group of its own: a program may end its group, and Python ignores signals that programs do not.
    started = os.posix_spawnp(
        sys.argv[2], sys.argv[2:], os.environ, setpgroup=0, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
    )
    pid, status = 0, 0
    while pid != started:
        pid, status = os.waitpid(-1, 0)
    _end_others()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        prctl(_DUMPABLE, 0, 0, 0, 0)  # the program has left its core
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
