"""Small helpers about processes, ports and time, for tests that start and kill real ones.

Two kinds of time limit are told apart. Most only keep a broken test from hanging: they are :data:`PATIENCE_SECONDS`,
and nothing passes or fails by them. Few are the point of a test, or a limit of the product that is reached in it: they
are given for a machine that runs `make test` alone, and are longer on a busier one (:func:`scaled`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

PATIENCE_SECONDS = 900.0
"""Longest wait for what has to come."""
USUAL_CROWD = 2.0
"""Processes that want a processor, for each processor, while `make test` runs alone."""


def crowd() -> float:
    """How many processes want a processor, for each processor there is: now or in the last minute, whatever is more."""
    wanting = psutil.getloadavg()[0]
    with contextlib.suppress(OSError):  # Linux only
        wanting = max(wanting, float(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
    return wanting / len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else [0] * (os.cpu_count() or 1))


def scaled(seconds: float) -> float:
    """A time limit for this machine as busy as it is, given what it is where `make test` runs alone."""
    return seconds * max(1.0, crowd() / USUAL_CROWD)


def client_of(url: str) -> httpx.Client:
    """A client of a Prefect server's API at `url`.

    The server closes a connection that was idle for 5 seconds, as long as httpx keeps one: a request that is sent on it
    at that moment is lost. So none is used again after one second.
    """
    limits = httpx.Limits(keepalive_expiry=1.0)
    return httpx.Client(base_url=f"{url}/api", timeout=PATIENCE_SECONDS, limits=limits)


@contextlib.contextmanager
def as_in_a_terminal() -> Iterator[None]:
    """Processes started inside hear Ctrl-C, even where this one was started in the background of a script."""
    with _interruption(signal.default_int_handler):
        yield


@contextlib.contextmanager
def as_in_the_background() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, as a shell without job control starts `command &`."""
    with _interruption(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _interruption(action: Any) -> Iterator[None]:
    # A handler is no child's business, but a signal that is ignored here is ignored there.
    before = signal.signal(signal.SIGINT, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def wait_until(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.1,
) -> None:
    """Poll; fails with `what` when it takes longer than `seconds`, scaled to how busy the machine is meanwhile."""
    began = seen = time.monotonic()
    left = seconds
    while not condition():
        time.sleep(every)
        now = time.monotonic()
        left, seen = left - (now - seen) / scaled(1.0), now
        if left < 0 and not condition():
            said = what() if callable(what) else what
            raise AssertionError(f"waited {now - began:.0f} s (for {seconds:.0f} s without other load) until {said}")


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
    """SIGKILL to each, and wait until they are gone, or zombies that their parents have not reaped yet."""
    found = list(processes)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_until(lambda: all(map(ended, found)), lambda: f"these ended: {found}")


def ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(pid: int) -> bool:
    """Whether the process of an id is gone, or a zombie."""
    try:
        return ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def reap(process: subprocess.Popen[bytes] | None) -> None:
    """Wait for a killed child, so that it stays no zombie."""
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
