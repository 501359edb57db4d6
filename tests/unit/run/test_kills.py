"""kill -9 at any file operation: no half stage, nothing temporary left after resuming, the digests of a quiet run."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from crl.audit.verify import Severity, require_intact, verify
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from crl.run.lease import Lease
from crl.run.pruned import pruned
from crl.run.retention import prune
from tests.marks import sampled
from tests.unit.run import jobs
from tests.unit.run.killed import run_killed
from tests.unit.run.support import ORDER, digests, finished_run, leftovers, resume

ROUNDS = 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digests(finished_run(tmp_path_factory.mktemp("quiet"), ROUNDS))


@pytest.mark.parametrize("seed", sampled(range(8), 8))
def test_a_run_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, undisturbed: dict[str, str], seed: int
) -> None:
    generator, kills = random.Random(seed), 0
    seen: dict[str, str] = {}
    while not run_killed(jobs.train, tmp_path, ROUNDS, kill_at=generator.randint(20, 90)):
        kills += 1
        if not (tmp_path / "small" / "experiment.yaml").exists():
            continue
        run = RunDirectory.open(tmp_path / "small")
        found = digests(run)
        # What was complete stays as it was, and whatever exists is complete.
        assert seen.items() <= found.items() <= undisturbed.items()
        assert [problem for problem in verify(run.path) if problem.severity is Severity.damaged] == []
        seen = found
        assert kills < 100
    assert kills >= 3
    run = RunDirectory.open(tmp_path / "small")
    assert digests(run) == undisturbed
    assert leftovers(run) == []
    assert verify(run.path) == []
    attempts = [event for event in Journal(run.path).read() if event["event"] == "attempt_started"]
    tokens = [event["token"] for event in attempts]
    assert tokens == sorted(set(tokens))


def test_no_stage_is_made_twice(tmp_path: Path) -> None:
    assert not run_killed(jobs.train, tmp_path, ROUNDS, kill_at=150)
    run = RunDirectory.open(tmp_path / "small")
    before = {key: run.stage_path(int(key[:4]), key[5:]).stat().st_ino for key in digests(run)}
    assert before
    with Lease.acquire(run.path, seconds=30) as lease:
        made = resume(run, ROUNDS, lease.token)
        assert resume(run, ROUNDS, lease.token) == []
    assert not set(made) & set(before)
    assert {key: run.stage_path(int(key[:4]), key[5:]).stat().st_ino for key in before} == before


def _copy(run: RunDirectory, root: Path) -> RunDirectory:
    shutil.copytree(run.path, root / run.path.name)
    return RunDirectory.open(root / run.path.name)


@pytest.mark.slow
def test_pruning_can_be_killed_anywhere(tmp_path: Path) -> None:
    kill_at = 1
    made = finished_run(tmp_path / "made", rounds=3)
    for attempt in range(100):
        run = _copy(made, tmp_path / str(attempt))
        done = run_killed(jobs.prune_all_but_one, tmp_path / str(attempt), kill_at=kill_at)
        require_intact(run.path)
        with Lease.acquire(run.path, seconds=30) as lease:
            prune(run.path, {"actor": "update_actor"}, 1, 0, token=lease.token)
        assert verify(run.path) == []
        assert leftovers(run) == []
        assert sorted({entry.round for entry in pruned(run.path)}) == [1, 2]
        assert [(run.stage_path(n, "update_actor") / "checkpoint").is_dir() for n in (1, 2, 3)] == [False, False, True]
        if done:
            break
        kill_at += 13
    assert done


@pytest.mark.parametrize("step", [29, pytest.param(13, marks=pytest.mark.slow)])
def test_setting_aside_can_be_killed_anywhere(tmp_path: Path, undisturbed: dict[str, str], step: int) -> None:
    kill_at = 1
    made = finished_run(tmp_path / "made", ROUNDS)
    for attempt in range(100):
        run = _copy(made, tmp_path / str(attempt))
        done = run_killed(jobs.redo_first_collect, tmp_path / str(attempt), kill_at=kill_at)
        # Newest first: what is left is a beginning of the record.
        order = [f"{number:04d}/{stage}" for number in range(1, ROUNDS + 1) for stage in ORDER]
        left = [key for key in order if key in digests(run)]
        assert left == order[: len(left)]
        require_intact(run.path)
        with Lease.acquire(run.path, seconds=30) as lease:
            resume(run, ROUNDS, lease.token)
        assert digests(run) == undisturbed
        assert leftovers(run) == []
        if done:
            break
        kill_at += step
    assert done
