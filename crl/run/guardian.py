"""Processes of this project on one machine: how they end with the process that started them, also after `kill -9`, and
how they meet on loopback, past every proxy.

A guarded process has one small guardian beside it, which looks whether that process still runs. When it has ended, in
whatever way, the guardian ends every process that carries its mark in its environment. Children inherit the mark, so it
does not matter who started them: engines, launchers and their ranks, isolated environments, Prefect's servers and
workers. A child that is guarded itself gives its own children a mark of its own; they end when it does. Nothing is
written anywhere.

A guardian that is killed itself is replaced. Engines, launchers and ranks also watch their parent from inside: they end
where it and its guardian are killed together. An agent on another machine (`crl/engine/node.py`) ends with its input,
a sandbox of `swe` by bubblewrap's own option.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

MARK = "CRL_GUARDED_BY"
PARENT = "CRL_STARTED_BY"
"""Process id of the parent, for :func:`end_with_parent`: it may have ended before this process looks."""
SHARED_MEMORY = Path("/dev/shm")
"""What a process left there, in folders that name its mark, its guardian removes: nothing else frees the memory."""
_TICK_SECONDS = 0.2
_LOOKS = 3
"""A process that is just being started carries no mark for a moment."""
_PATIENCE_SECONDS = 2.0
_ORDER_SECONDS = 40.0
"""For a process that ends with its parent and has servers of its own to end in order."""

_guardian: subprocess.Popen[bytes] | None = None
_mark = secrets.token_hex(16)
_starting = threading.Lock()
STORE_VARIABLE = "CRL_RANKS_STORE"
"""Names the file in which ranks on one machine meet."""
_HERE = ("127.0.0.1", "localhost")
_NAMES = ("NO_PROXY", "no_proxy")


def guard(*, with_parent: bool = False) -> str:
    """From now on, whatever this process starts ends at the latest when this process does; returns the mark.

    `with_parent`, which counts in the first call: end this process too (SIGTERM first) when its parent ends.
    """
    global _guardian
    with _starting:
        if _guardian is None:
            watched = [os.getpid(), *([os.getppid()] if with_parent else [])]
            _guardian = _start(_mark, watched)
            threading.Thread(target=_replace, args=(_guardian, _mark, watched), name="guardian", daemon=True).start()
            os.environ[MARK] = _mark
        return _mark


def short(mark: str) -> str:
    """A mark in names of folders: paths of sockets may have a hundred characters."""
    return mark[:8]


def _start(mark: str, watched: list[int]) -> subprocess.Popen[bytes]:
    # By path, so that it starts wherever the package is. Its own session: Ctrl-C must not end it too early.
    return subprocess.Popen(
        [sys.executable, "-P", __file__, mark, *map(str, watched)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != MARK},
        start_new_session=True,
    )


def _replace(guardian: subprocess.Popen[bytes], mark: str, watched: list[int]) -> None:
    """A new guardian for one that was killed: it would not end before this process does."""
    while True:
        guardian.wait()
        with contextlib.suppress(OSError):  # no memory for it now
            guardian = _start(mark, watched)
        time.sleep(_TICK_SECONDS)


def end_with_parent() -> None:
    """From now on this process ends at once when its parent does, whether or not a guardian lives."""
    parent = int(os.environ.pop(PARENT, os.getppid()))
    threading.Thread(target=_end_after, args=(parent,), name="parent-watch", daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_TICK_SECONDS)
    os._exit(1)


def _forget() -> None:
    """In a fork: it ends by itself, so it needs a guardian and a mark of its own."""
    global _guardian, _mark, _starting
    _guardian, _mark, _starting = None, secrets.token_hex(16), threading.Lock()


os.register_at_fork(after_in_child=_forget)


def marked(mark: str) -> list[psutil.Process]:
    """Every process that carries a mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _runs(process: psutil.Process | None) -> bool:
    try:
        # A process that nobody has waited for yet has ended all the same.
        return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def _wait_and_end(mark: str, pids: list[int]) -> None:
    watched = [_process(pid) for pid in pids]
    while all(_runs(each) for each in watched):
        time.sleep(_TICK_SECONDS)
    guarded = watched[0]
    if guarded is not None and _runs(guarded):
        _end([guarded], _ORDER_SECONDS)
    looks = 0
    while looks < _LOOKS:
        processes = marked(mark)
        _end(processes, _PATIENCE_SECONDS)
        looks = 0 if processes else looks + 1
        time.sleep(_TICK_SECONDS)
    for left in SHARED_MEMORY.glob(f"crl-engine-*-{short(mark)}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _end(processes: list[psutil.Process], patience_seconds: float) -> None:
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                end(process)
        _, processes = psutil.wait_procs(processes, timeout=patience_seconds)


def past_proxies() -> None:
    """Tell HTTP libraries, here and in processes to come, that no proxy leads to this machine itself.

    With `HTTP_PROXY` alone they would ask the proxy for Prefect's server or vLLM's, which it does not know.
    """
    given = ",".join(os.environ.get(name, "") for name in _NAMES)
    listed = dict.fromkeys(each for part in given.split(",") if (each := part.strip()))
    # Libraries prefer one spelling or the other, and some know "*" only alone.
    value = "*" if "*" in listed else ",".join(dict.fromkeys([*listed, *_HERE]))
    os.environ.update(dict.fromkeys(_NAMES, value))


def on_loopback() -> dict[str, str]:
    """Variables with which gloo and NCCL listen on loopback, also where the machine's own name them a network."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo" if sys.platform == "linux" else "lo0")


if __name__ == "__main__":
    _wait_and_end(sys.argv[1], [int(pid) for pid in sys.argv[2:]])
