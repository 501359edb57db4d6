"""Opening a run reads what changed since it was last found intact, and notices every change that a write makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crl.audit import intact
from crl.audit.verify import require_intact, verify
from crl.errors import RecordDamaged
from crl.rounds.weights import identify
from crl.run import files
from crl.run.directory import RunDirectory
from crl.run.files import sha256_file, sha256_once
from crl.run.lease import Lease
from tests.unit.run.support import finished_run, write_stage


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return finished_run(tmp_path, rounds=2)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read while a run is opened; every file counts as settled."""
    monkeypatch.setattr(intact, "_SETTLED", -(10**12))
    found: list[str] = []

    def read(path: Path) -> str:
        found.append(path.name)
        return sha256_file(path)

    monkeypatch.setattr(intact, "sha256_file", read)
    return found


def opened(run: RunDirectory, reads: list[str]) -> list[str]:
    """What it reads to open the run."""
    reads.clear()
    require_intact(run.path, changed=True)
    return list(reads)


def test_what_has_not_changed_is_not_read_again(run: RunDirectory, reads: list[str]) -> None:
    whole = opened(run, reads)
    assert {"metrics.parquet", "weights.parquet", "model.bin"} <= set(whole)
    assert opened(run, reads) == []
    with Lease.acquire(run.path, seconds=30) as lease:
        write_stage(run, 3, "plan", [(2, "update_actor")], lease.token)
    assert opened(run, reads) == ["metrics.parquet"], "the new stage alone"
    (run.path / "cache" / "intact" / "files.json").write_bytes(b"{}")
    assert sorted(opened(run, reads)) == sorted([*whole, "metrics.parquet"]), "what is damaged tells nothing"
    assert opened(run, reads) == [] and verify(run.path) == []


def test_every_change_is_noticed_though_size_and_time_look_the_same(run: RunDirectory, reads: list[str]) -> None:
    opened(run, reads)
    recorded = [path for store in ("rounds", "bank") for path in (run.path / store).rglob("*") if path.is_file()]
    assert len(recorded) > 10
    for path in recorded:
        before, times = path.read_bytes(), path.stat()
        path.write_bytes(bytes([before[0] ^ 1]) + before[1:])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        for _ in range(2):  # it was not taken for intact the first time
            with pytest.raises(RecordDamaged):
                require_intact(run.path, changed=True)
        path.unlink()
        with pytest.raises(RecordDamaged):
            require_intact(run.path, changed=True)
        path.write_bytes(before)
        require_intact(run.path, changed=True)


def test_a_file_that_changed_just_before_it_was_read_is_read_again(
    run: RunDirectory, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intact, "_SETTLED", 10**18)
    assert opened(run, reads) == opened(run, reads) != []


def test_a_checkpoint_is_hashed_once_on_its_way_into_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(files, "sha256_file", lambda path: read.append(path.name) or sha256_file(path))
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_text(name)
    known = identify("0" * 64, tmp_path)
    assert [sha256_once(tmp_path / name) for name in read] == [sha256_file(tmp_path / name) for name in read]
    assert read == ["config.json", "model.safetensors"]
    assert identify("0" * 64, tmp_path) == known
    (tmp_path / "config.json").write_text("config,json")
    assert sha256_once(tmp_path / "config.json") == sha256_file(tmp_path / "config.json")
