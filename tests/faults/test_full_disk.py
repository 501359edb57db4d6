"""A disk that fills up in the middle of a stage: the last commit stands, and with room again the run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crl.audit.verify import Severity, verify
from crl.engine.driver import Driver
from crl.errors import DiskFull
from crl.run.directory import RunDirectory
from tests.faults.disks import fill, small_disk
from tests.tiny_run import NAME, ROUNDS, crl, cut_back, digests, experiment, leftovers

pytestmark = pytest.mark.slow


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes; mounting one needs root."""
    with small_disk(tmp_path / "disk") as place:
        yield place


@pytest.mark.parametrize(
    ("stage", "leave"), [("update_actor", 120_000), ("collect", 50_000), ("update_extractor", 1_200_000)]
)
def test_it_fills_in_the_middle_of_a_stage(finished: Path, small_disk: Path, stage: str, leave: int) -> None:
    path = small_disk / NAME
    shutil.copytree(finished, path)
    cut_back(path, ROUNDS, stage)
    before = digests(path)
    ballast = fill(small_disk, leave=leave)
    run = RunDirectory.open(path)
    with Driver(run, experiment(runtime__retries=0).runtime) as driver:
        with pytest.raises(DiskFull) as raised:
            driver.run_rounds(ROUNDS)
        assert driver.next_round() == ROUNDS
    assert "no space was left on the disk" in str(raised.value) and "crl resume" in str(raised.value)
    after = digests(path)
    assert before.items() <= after.items() <= digests(finished).items()
    assert f"{ROUNDS:04d}/{stage}" not in after
    assert [problem for problem in verify(path) if problem.severity is Severity.damaged] == []
    assert not [name for name in leftovers(path) if ".parts" not in name], "what could not be finished was removed"

    ballast.unlink()
    crl(small_disk, "resume", NAME)
    assert digests(path) == digests(finished)
    assert leftovers(path) == []
    assert verify(path) == []


def test_without_a_single_free_block_nothing_begins(finished: Path, small_disk: Path) -> None:
    path = small_disk / NAME
    shutil.copytree(finished, path)
    cut_back(path, ROUNDS, "update_actor")
    before = digests(path)
    ballast = fill(small_disk, leave=0)
    for attempt in (["resume", NAME], ["resume", NAME, "--rounds", "1"]):
        refused = crl(small_disk, *attempt, code=1)
        assert "no space was left on the disk" in refused.stderr and "What to do: free some space" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert digests(path) == before
    ballast.unlink()
    assert [problem for problem in verify(path) if problem.severity is Severity.damaged] == []
    assert leftovers(path) == []


def test_the_command_tries_again_and_then_says_what_to_do(finished: Path, small_disk: Path) -> None:
    path = small_disk / NAME
    shutil.copytree(finished, path)
    cut_back(path, ROUNDS, "update_actor")
    ballast = fill(small_disk, leave=120_000)
    refused = crl(small_disk, "resume", NAME, code=1)
    assert "no space was left on the disk" in refused.stderr and "Traceback" not in refused.stderr
    assert "last failure: round 2, stage update_actor" in crl(small_disk, "status", NAME).stdout
    ballast.unlink()
    crl(small_disk, "resume", NAME)
    assert digests(path) == digests(finished)
