"""Who owns a lease, and whether that process still lives.

On one machine a process is known by its id and start time: a reused id is not mistaken for the owner. Across machines
(or containers, or a restart) process ids mean nothing; there only the age of the heartbeat counts.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict


class Owner(BaseModel):
    """A process that holds or held the lease."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    machine: str
    """Boot id and process-id namespace: process ids can be compared only where it is equal."""
    pid: int
    started: float
    """Start of the process: clock ticks since boot on Linux (a changed wall clock does not move it)."""
    command: str
    since: str
    """When the lease was taken (UTC, ISO 8601)."""

    @classmethod
    def this_process(cls) -> Owner:
        """The calling process, now."""
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            started=_start_of(os.getpid()) or 0.0,
            command=shlex.join(sys.argv),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def is_local(self) -> bool:
        """Whether this process can see the owner's process id."""
        return self.host == socket.gethostname() and self.machine == _machine()

    def lives(self) -> bool:
        """Whether the owner's process still runs; only meaningful where :meth:`is_local`."""
        started = _start_of(self.pid)
        return started is not None and abs(started - self.started) < 2.0

    def is_stopped(self) -> bool:
        """Whether the owner's process is stopped (SIGSTOP, Ctrl-Z, a debugger); only where it :meth:`lives` here."""
        try:
            return bool(psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
        except psutil.Error:
            return False


def machine_digest() -> str:
    """Eight characters for where process ids mean the same: this host, since its start, in this container."""
    return hashlib.sha256(f"{socket.gethostname()} {_machine()}".encode()).hexdigest()[:8]


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


def _start_of(pid: int) -> float | None:
    """When a process started; None if there is none, or only a zombie that nobody has waited for."""
    try:
        # The name in brackets may hold spaces and brackets: fields are counted after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else float(fields[19])
    except (OSError, IndexError, ValueError):
        pass
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
