"""What the killed children do."""

from __future__ import annotations

import time
from pathlib import Path

from crl.audit.redo import set_aside
from crl.run.branch import Branch, make_branch
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.run.retention import prune
from tests.unit.run.support import experiment, resume, stages_of


def train(root: Path, rounds: int) -> None:
    run = RunDirectory.create_or_open(experiment(), root)
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, rounds, lease.token)


def prune_all_but_one(root: Path) -> None:
    path = root / "small"
    with Lease.acquire(path, seconds=30) as lease:
        prune(path, {"actor": "update_actor"}, 1, 0, token=lease.token)


def redo_first_collect(root: Path) -> None:
    path = root / "small"
    with Lease.acquire(path, seconds=30) as lease:
        set_aside(path, 1, "collect", stages_of, token=lease.token)


def fork_after_first_round(root: Path) -> None:
    parent = RunDirectory.open(root / "small")
    make_branch(Branch(parent, 1), experiment("child"), root, lambda directory: None)


def hold(path: Path, ready: Path) -> None:
    """Take a lease, say so, keep it until killed."""
    with Lease.acquire(path, seconds=600) as lease:
        ready.write_text(str(lease.token))
        time.sleep(3600)


def contend(path: Path, log: Path) -> None:
    """Take the lease as often as it can be had; each time, record that nobody else has it."""
    from crl.errors import LeaseHeld

    taken = 0
    while taken < 5:
        try:
            with Lease.acquire(path, seconds=30) as lease:
                with (path / "exclusive").open("x") as file:
                    file.write("mine")
                with log.open("a") as file:
                    file.write(f"{lease.token}\n")
                (path / "exclusive").unlink()
                taken += 1
        except LeaseHeld:
            time.sleep(0.002)
