"""The lease: one owner, named; the dead are replaced; the replaced are shut out."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from crl.errors import LeaseHeld, RunDirectoryUnusable, StaleAttempt
from crl.run.files import machine_digest, temporary
from crl.run.journal import Journal
from crl.run.lease import Lease, LeaseFile, Owner, check_token, commit_guard, lease_state
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.unit.run import jobs
from tests.unit.run.killed import run_killed


def _child(job: str, *arguments: Any) -> subprocess.Popen[bytes]:
    paths = ", ".join(
        f"Path({str(argument)!r})" if isinstance(argument, Path) else repr(argument) for argument in arguments
    )
    code = f"from pathlib import Path; from tests.unit.run import jobs; jobs.{job}({paths})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])


def _rewrite(path: Path, **changes: Any) -> None:
    """The lease as another machine or an earlier boot would have written it."""
    lease = LeaseFile.load(path)
    assert lease is not None
    owner = lease.owner.model_copy(update=changes)
    (path / "lease.json").write_bytes(lease.model_copy(update={"owner": owner, "released": False}).sealed().render())


def test_tokens_grow(tmp_path: Path) -> None:
    tokens = []
    for _ in range(3):
        with Lease.acquire(tmp_path, seconds=30) as lease:
            tokens.append(lease.token)
    assert tokens == [1, 2, 3]
    assert lease_state(tmp_path) is None


def test_tokens_grow_even_if_the_lease_file_is_lost(tmp_path: Path) -> None:
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"{}")):
        with Lease.acquire(tmp_path, seconds=30) as lease:
            before = lease.token
        damage(tmp_path / "lease.json")
        with Lease.acquire(tmp_path, seconds=30) as lease:
            assert lease.token > before


def test_a_live_owner_is_named_and_not_replaced(tmp_path: Path) -> None:
    child = _child("hold", tmp_path, tmp_path / "ready")
    try:
        wait_until((tmp_path / "ready").exists, "the child holds the lease", every=0.01)
        with pytest.raises(LeaseHeld) as raised:
            Lease.acquire(tmp_path, seconds=30)
        owner = lease_state(tmp_path)
        assert owner is not None
        assert owner.live
        message = str(raised.value)
        for part in (str(child.pid), owner.owner.host, owner.owner.since, owner.owner.command, f"kill {child.pid}"):
            assert part in message
        assert raised.value.exit_code == 3
        child.kill()
        child.wait()
        # Dead on this machine: replaced at once, long before its heartbeat is old.
        with Lease.acquire(tmp_path, seconds=30) as lease:
            assert lease.token == 2
    finally:
        child.kill()
        child.wait()
    events = [event["event"] for event in Journal(tmp_path).read()]
    assert events == ["attempt_started", "attempt_taken_over", "attempt_started", "attempt_ended"]


def test_a_killed_owner_nobody_waited_for_is_dead(tmp_path: Path) -> None:
    child = _child("hold", tmp_path, tmp_path / "ready")
    try:
        wait_until((tmp_path / "ready").exists, "the child holds the lease", every=0.01)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with Lease.acquire(tmp_path, seconds=30) as lease:
            assert lease.token == 2
    finally:
        child.kill()
        child.wait()


def test_a_stopped_owner_is_replaced_when_its_heartbeat_is_old_and_then_shut_out(tmp_path: Path) -> None:
    child = _child("hold", tmp_path, tmp_path / "ready")
    try:
        wait_until((tmp_path / "ready").exists, "the child holds the lease", every=0.01)
        held = LeaseFile.load(tmp_path)
        assert held is not None
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(LeaseHeld, match=f"kill -CONT {child.pid}"):
            Lease.acquire(tmp_path, seconds=30)
        old = (tmp_path / "lease.json").stat().st_mtime - 2 * held.seconds
        os.utime(tmp_path / "lease.json", (old, old))
        with Lease.acquire(tmp_path, seconds=30) as lease:
            assert lease.token == held.token + 1
            child.send_signal(signal.SIGCONT)
            with pytest.raises(StaleAttempt, match="taken over"):
                check_token(tmp_path, held.token)
            lease.check()
    finally:
        child.kill()
        child.wait()


def test_the_same_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path, seconds=30), pytest.raises(LeaseHeld, match=str(os.getpid())):
        Lease.acquire(tmp_path, seconds=30)


def test_a_reused_process_id_is_not_the_owner(tmp_path: Path) -> None:
    Lease.acquire(tmp_path, seconds=30).release()
    _rewrite(tmp_path, started=1.0)
    with Lease.acquire(tmp_path, seconds=30) as lease:
        assert lease.token == 2


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"machine": "before the restart"}])
def test_an_owner_elsewhere_is_replaced_only_when_its_heartbeat_is_old(tmp_path: Path, changes: dict[str, str]) -> None:
    Lease.acquire(tmp_path, seconds=30).release()
    _rewrite(tmp_path, **changes)
    with pytest.raises(LeaseHeld, match="heartbeat is 30 s old"):
        Lease.acquire(tmp_path, seconds=30)
    before = time.time() - 31
    os.utime(tmp_path / "lease.json", (before, before))
    with Lease.acquire(tmp_path, seconds=30) as lease:
        assert lease.token == 2


def test_processes_that_contend_never_hold_it_together(tmp_path: Path) -> None:
    log = tmp_path / "log"
    children = [_child("contend", tmp_path, log) for _ in range(3)]
    assert [child.wait(PATIENCE_SECONDS) for child in children] == [0, 0, 0]
    tokens = [int(line) for line in log.read_text().split()]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 15


def test_a_replaced_attempt_notices_and_is_shut_out(tmp_path: Path) -> None:
    told = threading.Event()
    first = Lease.acquire(tmp_path, seconds=0.2, on_lost=told.set)
    _rewrite(tmp_path, host="elsewhere")
    before = time.time() - 60
    os.utime(tmp_path / "lease.json", (before, before))
    # The heartbeat may touch the file first; an owner that was asleep would not have.
    second = None
    while second is None:
        try:
            second = Lease.acquire(tmp_path, seconds=30)
        except LeaseHeld:
            os.utime(tmp_path / "lease.json", (before, before))
    assert first.lost.wait(PATIENCE_SECONDS)
    assert told.wait(PATIENCE_SECONDS)
    with pytest.raises(StaleAttempt, match="taken over: token 2"):
        first.check()
    with pytest.raises(StaleAttempt), commit_guard(tmp_path, first.token):
        raise AssertionError("the guard let a stale attempt in")
    first.release()
    second.check()
    assert not second.lost.is_set()
    second.release()


def test_a_heartbeat_that_cannot_be_written_loses_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with Lease.acquire(tmp_path, seconds=0.2) as lease:
        lease.check()
        monkeypatch.setattr("crl.run.lease.os.utime", read_only)
        assert lease.lost.wait(PATIENCE_SECONDS)
        with pytest.raises(StaleAttempt, match="heartbeat could not be written"):
            lease.check()


def test_the_heartbeat_moves(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path, seconds=0.1):
        before = time.time() - 60
        os.utime(tmp_path / "lease.json", (before, before))
        beats = lambda: (tmp_path / "lease.json").stat().st_mtime > before + 1  # noqa: E731
        wait_until(beats, "the heartbeat moves", every=0.01)


def test_a_released_token_is_stale(tmp_path: Path) -> None:
    lease = Lease.acquire(tmp_path, seconds=30)
    check_token(tmp_path, lease.token)
    lease.release()
    lease.release()
    with pytest.raises(StaleAttempt):
        check_token(tmp_path, lease.token)
    with pytest.raises(StaleAttempt):
        check_token(tmp_path / "nowhere", 1)


def test_a_lease_needs_a_run_directory(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryUnusable):
        Lease.acquire(tmp_path / "nowhere", seconds=30)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lustre that was mounted without the option flock."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("crl.run.lease.fcntl.flock", flock)
    with pytest.raises(RunDirectoryUnusable, match="locks no files") as raised:
        Lease.acquire(tmp_path, seconds=30)
    assert "Lustre: the option flock" in str(raised.value) and raised.value.where == str(tmp_path / "lease.lock")


def test_taking_the_lease_sweeps_what_the_dead_left(tmp_path: Path) -> None:
    assert not run_killed(jobs.train, tmp_path, 1, kill_at=45)
    path = tmp_path / "small"
    (path / "rounds" / "0001").mkdir(parents=True, exist_ok=True)
    dead, old = (path / f".tmp-experiment.yaml-{machine}-999999999-0" for machine in (machine_digest(), "0" * 8))
    for name in (".tmp-collect-1", dead.name, old.name, "rounds/0001/.tmp-collect-1"):
        (path / name).mkdir(exist_ok=True)
    os.utime(old, (time.time() - 100_000,) * 2)
    mine, elsewhere = temporary(path / "experiment.yaml", 0), path / ".tmp-experiment.yaml-11111111-999999999-0"
    for alive in (mine, elsewhere):  # of another machine nobody knows which processes are gone
        alive.touch()
    with Lease.acquire(path, seconds=30) as lease:
        assert lease.token >= 2
        assert {*path.rglob(".tmp-*")} == {mine, elsewhere}


def test_the_owner_is_this_process() -> None:
    owner = Owner.this_process()
    assert (owner.pid, owner.is_local(), owner.lives()) == (os.getpid(), True, True)
    assert json.loads(owner.model_dump_json())["pid"] == os.getpid()
