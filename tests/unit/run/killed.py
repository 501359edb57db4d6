"""Work on a run in a child process that is killed (SIGKILL) at its n-th file operation: every boundary can be hit.

Children come from a fork server, so that each starts in milliseconds and without the test process's threads.
A copy of a process with threads waits for ever for a lock that one of them held.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import PATIENCE_SECONDS

_OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "os.utime"}
_context = multiprocessing.get_context("forkserver")


def run_killed(job: Callable[..., object], path: Path, *arguments: Any, kill_at: int | None = None) -> bool:
    """Run `job(path, *arguments)` in a child, killed at its `kill_at`-th file operation below `path`.

    Returns whether it came to its end before; raises if it failed by itself.
    """
    _context.set_forkserver_preload([job.__module__])  # of no effect after the first call
    process = _context.Process(target=_child, args=(job, path, arguments, kill_at, dict(os.environ)))
    process.start()
    process.join(PATIENCE_SECONDS)
    if process.exitcode == -signal.SIGKILL:
        return False
    if process.exitcode != 0:
        raise AssertionError(f"the child ended with {process.exitcode}")
    return True


def _child(
    job: Callable[..., object],
    path: Path,
    arguments: tuple[Any, ...],
    kill_at: int | None,
    environment: dict[str, str],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    count = 0

    def hook(event: str, details: tuple[Any, ...]) -> None:
        nonlocal count
        if event in _OPERATIONS and str(path) in os.fsdecode(
            details[0] if isinstance(details[0], str | bytes) else str(details[0])
        ):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill_at is not None:
        sys.addaudithook(hook)
    job(path, *arguments)
