"""The lease: one attempt at a time writes a run, and a newer attempt shuts an older one out.

`lease.json` names the owner and its **token**, which grows with every attempt; `lease.lock` guards taking the lease and
every commit (`flock`). A dead owner on this machine is replaced at once; one elsewhere, or one stopped here (SIGSTOP),
when its heartbeat (the file's modification time) is older than the lease's seconds. Commits check the token under the
lock, so an attempt that was replaced while it slept cannot commit. Needs a POSIX file system.

On one machine a process is known by its id and start time: a reused id is not mistaken for the owner. Across machines
(or containers, or a restart) process ids mean nothing; there only the age of the heartbeat counts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crl.errors import LeaseHeld, RunDirectoryUnusable, StaleAttempt
from crl.limits import LARGEST_NUMBER, is_count, read_limited
from crl.run.files import canonical_json, machine, open_own, sha256_bytes, sweep, unwritable, write_atomically
from crl.run.journal import Journal


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
            machine=machine(),
            pid=os.getpid(),
            started=_start_of(os.getpid()) or 0.0,
            command=shlex.join(sys.argv),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def is_local(self) -> bool:
        """Whether this process can see the owner's process id."""
        return self.host == socket.gethostname() and self.machine == machine()

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


LEASE = "lease.json"
LOCK = "lease.lock"
_LOCK_PATIENCE_SECONDS = 60.0
_LOCKS_NOTHING = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})


class LeaseFile(BaseModel):
    """Content of `lease.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: int = Field(ge=0, lt=LARGEST_NUMBER)
    released: bool
    seconds: float
    owner: Owner
    check: str = ""

    def sealed(self) -> LeaseFile:
        """With `check` computed over the rest."""
        return self.model_copy(update={"check": self._check()})

    def _check(self) -> str:
        return sha256_bytes(canonical_json(self.model_dump(mode="json", exclude={"check"})))

    @classmethod
    def load(cls, run_path: Path) -> LeaseFile | None:
        """Read it; None if there is none. Raises ValueError if it is not what was written."""
        try:
            content = read_limited(run_path / LEASE)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"{LEASE} cannot be read: {error.strerror}") from error
        try:
            lease = cls.model_validate_json(content)
        except ValidationError as error:
            raise ValueError(f"{LEASE} is not a lease") from error
        if lease.check != lease._check() or content != lease.render():
            raise ValueError(f"{LEASE} has check {lease._check()}, expected {lease.check}")
        return lease

    def render(self) -> bytes:
        """The bytes of the file."""
        return self.model_dump_json(indent=1).encode() + b"\n"


@dataclass(frozen=True)
class LeaseState:
    """Who holds a run, for `crl status`."""

    owner: Owner
    token: int
    live: bool


def lease_state(run_path: Path) -> LeaseState | None:
    """The current owner of a run; None if nobody ever held it or the last one released it."""
    try:
        lease = LeaseFile.load(run_path)
    except ValueError:
        return None
    if lease is None or lease.released:
        return None
    age = max(0.0, time.time() - (run_path / LEASE).stat().st_mtime)
    return LeaseState(lease.owner, lease.token, _is_live(lease, age))


def refuse_held(run_path: Path) -> None:
    """Raise LeaseHeld where somebody holds a run now; writes nothing."""
    state = lease_state(run_path)
    if state is not None and state.live and (lease := LeaseFile.load(run_path)) is not None:
        raise _held(run_path, lease, max(0.0, time.time() - (run_path / LEASE).stat().st_mtime))


def attempt_lives(run_path: Path, token: int) -> bool:
    """Whether the attempt with this token holds the lease and its owner lives; OSError where that cannot be read."""
    try:
        lease = LeaseFile.load(run_path)
    except ValueError:
        return False
    if lease is None or lease.token != token or lease.released:
        return False
    return _is_live(lease, 0.0 if lease.owner.is_local() else _heartbeat_age(run_path))


def check_token(run_path: Path, token: int) -> None:
    """Raise StaleAttempt unless `token` is the one that holds the lease now."""
    try:
        lease = LeaseFile.load(run_path)
    except ValueError as error:
        raise StaleAttempt(str(error), expected=f"token {token} to hold the lease", where=str(run_path)) from error
    if lease is not None and lease.token == token and not lease.released:
        return
    if lease is None:
        found = "nobody holds the lease of this run"
    elif lease.released:
        found = f"the lease with token {lease.token} was given back"
    else:
        found = f"the lease was taken over: token {lease.token}, process {lease.owner.pid} on {lease.owner.host}"
    raise StaleAttempt(
        f"attempt {token} may not write: {found}",
        expected=f"token {token} to hold the lease",
        where=str(run_path),
        next_step="nothing was committed; let the newer attempt work, or `crl resume` after it",
    )


@contextlib.contextmanager
def commit_guard(run_path: Path, token: int) -> Iterator[None]:
    """Hold the lease's lock while something is committed. Raises StaleAttempt if `token` does not hold the lease."""
    with _locked(run_path):
        check_token(run_path, token)
        yield


class Lease:
    """A held lease; a context manager. A thread keeps the heartbeat and notices when the lease is lost."""

    def __init__(self, run_path: Path, token: int, seconds: float, on_lost: Callable[[], None] | None) -> None:
        self.run_path, self.token, self.seconds = run_path, token, seconds
        self.lost = threading.Event()
        """Set when a newer attempt took the lease, or the heartbeat could not be written for `seconds`."""
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._released = False
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)

    @classmethod
    def acquire(cls, run_path: Path, *, seconds: float, on_lost: Callable[[], None] | None = None) -> Lease:
        """Take the lease of a run directory, or raise LeaseHeld naming its live owner.

        What dead attempts left unfinished is removed.
        """
        run_path = Path(run_path)
        if not run_path.is_dir():
            raise RunDirectoryUnusable(
                f"there is no run directory at {run_path}", next_step="start it with `crl train CONFIG`"
            )
        with _locked(run_path) as descriptor:
            with contextlib.suppress(OSError):  # of a pipe, say
                os.ftruncate(descriptor, 0)  # nothing belongs into it; whatever damaged it, the lock holds
            try:
                previous = LeaseFile.load(run_path)
            except ValueError:
                previous = None
            if previous is not None and not previous.released:
                age = _heartbeat_age(run_path)
                if _is_live(previous, age):
                    raise _held(run_path, previous, age)
            token = 1 + max(previous.token if previous is not None else 0, _latest_token(run_path))
            lease = cls(run_path, token, seconds, on_lost)
            journal = Journal(run_path)
            if previous is not None and not previous.released:
                journal.record("attempt_taken_over", token=token, owner=previous.owner.model_dump(mode="json"))
            owner = Owner.this_process()
            journal.record("attempt_started", token=token, owner=owner.model_dump(mode="json"))
            # The token is on disk before anything is removed: no later attempt can get the same one.
            lease._write(owner, released=False)
            sweep(run_path, token)
        lease._thread.start()
        return lease

    def release(self, error: BaseException | None = None) -> None:
        """Give the lease back; no error if it was lost already. Called by leaving the context."""
        if self._released:
            return
        self._released = True
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(StaleAttempt), commit_guard(self.run_path, self.token):
            previous = LeaseFile.load(self.run_path)
            # A full disk must not keep the lease.
            with contextlib.suppress(Exception):
                Journal(self.run_path).record("attempt_ended", token=self.token, error=error)
            if previous is not None:
                try:
                    self._write(previous.owner, released=True)
                except Exception:
                    # Removing needs no space; the journal still knows the token, so the next one is higher.
                    (self.run_path / LEASE).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise StaleAttempt if the lease was lost."""
        check_token(self.run_path, self.token)
        if self.lost.is_set():  # nobody has taken it over yet; any moment somebody may
            raise StaleAttempt(
                f"attempt {self.token} gave up: its heartbeat could not be written for {self.seconds:.0f} s",
                expected="a disk that can be written",
                where=str(self.run_path / LEASE),
                next_step="every complete stage is kept: `crl resume` when the disk can be written again",
            )

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(error)

    def _write(self, owner: Owner, *, released: bool) -> None:
        content = LeaseFile(token=self.token, released=released, seconds=self.seconds, owner=owner)
        write_atomically(self.run_path / LEASE, content.sealed().render(), token=self.token)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(min(self.seconds / 4, 5.0)):
            try:
                check_token(self.run_path, self.token)
                # Touching needs no disk space, and on a network file system it takes the server's clock.
                os.utime(self.run_path / LEASE)
                last = time.monotonic()
            except StaleAttempt:
                self._lose()
                return
            except OSError:
                if time.monotonic() - last > self.seconds:
                    self._lose()
                    return

    def _lose(self) -> None:
        self.lost.set()
        if self._on_lost is not None:
            self._on_lost()


def _is_live(lease: LeaseFile, heartbeat_age: float) -> bool:
    if lease.owner.is_local():
        # A stopped process may never go on; should it, its token is out of date and its commits are refused.
        return lease.owner.lives() and not (heartbeat_age > lease.seconds and lease.owner.is_stopped())
    return heartbeat_age <= lease.seconds


def _heartbeat_age(run_path: Path) -> float:
    # Both times come from the file system's own clock, so clocks of different machines are never compared.
    os.utime(run_path / LOCK)
    return max(0.0, (run_path / LOCK).stat().st_mtime - (run_path / LEASE).stat().st_mtime)


def _held(run_path: Path, lease: LeaseFile, age: float) -> LeaseHeld:
    owner = lease.owner
    step = f"wait until it ends, or end it (`kill {owner.pid}` on {owner.host}); then `crl resume`"
    if not owner.is_local():
        step += f". If that machine is gone, the run is free when the heartbeat is {lease.seconds:.0f} s old"
    elif owner.is_stopped():
        step += f". It is stopped: go on with `kill -CONT {owner.pid}`; the run is free {lease.seconds:.0f} s after"
        step += " its last heartbeat"
    return LeaseHeld(
        f"the run is owned by process {owner.pid} on {owner.host} since {owner.since}: {owner.command}\n"
        f"(attempt {lease.token}, last heartbeat {age:.0f} s ago)",
        expected="one attempt at a time",
        where=str(run_path),
        next_step=step,
    )


def _latest_token(run_path: Path) -> int:
    """The highest token the journal knows: it outlives a lost lease file and knows attempts that died early."""
    tokens = [event.get("token") for event in Journal(run_path).read()]
    return max((token for token in tokens if is_count(token)), default=0)


@contextlib.contextmanager
def _locked(run_path: Path) -> Iterator[int]:
    try:
        descriptor = open_own(run_path / LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise unwritable(error, run_path, "the run directory") from error
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LeaseHeld(
                        f"another process has held {LOCK} for {_LOCK_PATIENCE_SECONDS:.0f} s",
                        expected="a commit to take less than a second",
                        where=str(run_path),
                        next_step="look for a stopped process of this run, then `crl resume`",
                    ) from None
                time.sleep(0.005)
            except OSError as error:
                if error.errno not in _LOCKS_NOTHING:
                    raise
                raise RunDirectoryUnusable(
                    f"the file system of the run directory locks no files: {error.strerror}",
                    expected="a POSIX file system with flock, on which two attempts cannot write one run",
                    where=str(run_path / LOCK),
                    next_step="mount it with locks (Lustre: the option flock; NFS 3: without nolock), or choose "
                    "another place: CRL_RUNS or --runs",
                ) from error
        yield descriptor
    finally:
        # Unlocking by hand: a child forked at the wrong moment would keep a lock that only closing releases.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
