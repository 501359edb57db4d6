"""Small helpers about processes and ports, for tests that start and kill real ones."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float, every: float = 0.1) -> None:
    """Poll; fails with `what` when it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s until {what() if callable(what) else what}")
        time.sleep(every)


def environ(process: psutil.Process) -> dict[str, str]:
    """The environment of a living process; empty where it has ended or belongs to another user."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() != psutil.STATUS_ZOMBIE:
            variables: dict[str, str] = process.environ()
            return variables
    return {}


def command_line(process: psutil.Process) -> list[str]:
    """The words of its command line; empty where it has ended."""
    with contextlib.suppress(psutil.Error, OSError):
        words: list[str] = process.cmdline()
        return words
    return []


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each, and wait until they are gone."""
    found = list(processes)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=10.0)


def reap(process: subprocess.Popen[bytes] | None) -> None:
    """Wait for a killed child, so that it stays no zombie."""
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
