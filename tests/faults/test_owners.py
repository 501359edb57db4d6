"""Two processes on one run: the second is refused; one that was replaced while it slept can change nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crl.audit.verify import verify
from crl.run.journal import Journal
from crl.run.lease import LEASE, LeaseFile
from tests.faults.killing import workers_of
from tests.faults.mishaps import Mishap
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.tiny_run import ROOT, ROUNDS, command, crl, cut_back, digests, environment, leftovers, train

pytestmark = pytest.mark.slow

HELD = ("update_actor", "collect", "update_extractor")
"""Stages that the first process is in when it falls asleep."""
LEASE_SECONDS = 3600
"""So long a sleeping owner on this machine is taken to be alive: longer than the test takes."""


@pytest.fixture
def first(copied: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that trains the last round again, from a stage on, and is held in the middle of one."""
    cut, stage = request.param
    cut_back(copied, ROUNDS, cut)
    process = subprocess.Popen(
        command(*train(1, runtime__lease_seconds=LEASE_SECONDS)), cwd=ROOT,
        env=environment(copied.parent, _held(copied, stage).variables()),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        for engine in workers_of(process.pid):
            engine.kill()
        process.kill()
        process.communicate()


def _held(run_path: Path, stage: str) -> Mishap:
    return Mishap("hold", (f"{ROUNDS:04d}/{stage}",), str(run_path.parent))


def _pretend_elsewhere(run_path: Path) -> None:
    """The lease as an owner on another machine would have written it: there, only its heartbeat tells if it lives."""
    lease = LeaseFile.load(run_path)
    assert lease is not None and not lease.released and lease.seconds == LEASE_SECONDS
    moved = lease.model_copy(update={"owner": lease.owner.model_copy(update={"host": "elsewhere"})})
    (run_path / LEASE).write_bytes(moved.sealed().render())


@pytest.mark.parametrize(
    ("first", "stage"),
    [(("plan" if stage == "collect" else "update_actor", stage), stage) for stage in HELD],
    indirect=["first"],
)
def test_the_second_is_refused_and_a_replaced_one_changes_nothing(
    first: subprocess.Popen[str], stage: str, finished: Path, copied: Path
) -> None:
    directory = copied / "rounds" / f"{ROUNDS:04d}"
    unfinished = f".parts-{stage}/0*" if stage == "collect" else f".tmp-{stage}-*"
    held = _held(copied, stage)
    begun = lambda: first.poll() is not None or held.reached(f"{ROUNDS:04d}/{stage}")  # noqa: E731
    wait_until(begun, f"{stage} was being written")
    assert first.poll() is None, first.communicate()

    # Stopped in the middle of a stage, with its engine: as if the machine were asleep.
    engines = workers_of(first.pid)
    assert len(engines) == 1
    first.send_signal(signal.SIGSTOP)
    engines[0].suspend()
    assert not (directory / stage).exists()
    refused = crl(copied.parent, "resume", str(copied), code=3)
    for word in (f"process {first.pid} on {socket.gethostname()}", "crl train", "conf/tiny.yaml"):
        assert word in refused.stderr.replace("__main__.py", "crl"), refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(directory.glob(".tmp-*-0")) and any(directory.glob(unfinished)), "the refused one removed nothing"

    # On another machine only the heartbeat tells: now it is old, and the second takes over.
    _pretend_elsewhere(copied)
    old = (copied / LEASE).stat().st_mtime - 10 * LEASE_SECONDS
    os.utime(copied / LEASE, (old, old))
    crl(copied.parent, "resume", str(copied))
    complete = digests(copied)
    assert complete == digests(finished)
    written = {key: (copied / "rounds" / key / "manifest.json").stat().st_ino for key in complete}

    # Awake again, the first finds itself replaced.
    held.go(f"{ROUNDS:04d}/{stage}")
    engines[0].resume()
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 3, said
    assert re.search(r"attempt \d+ may not write: the lease (was taken over|with token \d+ was given back)", said), said
    assert "nothing was committed" in said
    assert "Traceback" not in said
    wait_until(lambda: not engines[0].is_running() or engines[0].status() == "zombie", "its engine had ended", 30)
    assert digests(copied) == complete
    assert {key: (copied / "rounds" / key / "manifest.json").stat().st_ino for key in complete} == written
    assert leftovers(copied) == []
    assert verify(copied) == []
    committed = [event["token"] for event in Journal(copied).read() if event.get("event") == "stage_committed"]
    assert committed == sorted(committed), "after the second took over, the first committed nothing"
