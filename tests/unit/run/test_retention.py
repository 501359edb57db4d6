"""Retention, disk space and the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from crl.audit.verify import verify
from crl.errors import NotEnoughDisk, RecordDamaged, StaleAttempt
from crl.records import Weights, table_of
from crl.report.views import write_catalog
from crl.run import cache, retention
from crl.run.directory import RunDirectory
from crl.run.files import free_bytes, remove, require_free
from crl.run.lease import Lease, commit_guard
from crl.run.pruned import pruned
from crl.run.retention import prune
from tests.unit.run.support import finished_run, weights_row, write_stage


def _kept(run: RunDirectory) -> list[int]:
    return [n for n in run.rounds() if (run.stage_path(n, "update_actor") / "checkpoint").is_dir()]


def _went_on(run: RunDirectory, number: int, before: int, token: int) -> None:
    """A round without an update: its row points to the checkpoint of an earlier one."""
    with run.begin(number, "update_actor", token=token) as writer:
        row = weights_row(number, f"rounds/{before:04d}/update_actor/checkpoint")
        writer.write(Weights, table_of(Weights, [row]))
        writer.commit(inputs=[], method_digest=run.method_digest, seed=0, provenance={})


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "keep", "kept"),
    [
        (2, 0, [], [4, 5]),
        (1, 0, [], [5]),
        (1, 2, [], [2, 4, 5]),
        (1, 0, [1], [1, 5]),
        (9, 0, [], [1, 2, 3, 4, 5]),
    ],
)
def test_newest_every_and_named_ones_are_kept(
    tmp_path: Path, keep_last: int, keep_every: int, keep: Sequence[int], kept: list[int]
) -> None:
    run = finished_run(tmp_path, rounds=5)
    with Lease.acquire(run.path, seconds=30) as lease:
        deleted = prune(run.path, {"actor": ["update_actor"]}, keep_last, keep_every, keep=keep, token=lease.token)
        assert prune(run.path, {"actor": ["update_actor"]}, keep_last, keep_every, keep=keep, token=lease.token) == []
    assert _kept(run) == kept
    assert [entry.round for entry in deleted] == [n for n in range(1, 6) if n not in kept]
    assert pruned(run.path) == deleted
    assert all(entry.bytes == 8000 and len(entry.sha256s) == 2 for entry in deleted)
    assert verify(run.path) == []
    if deleted:
        line = json.loads((run.path / "pruned.jsonl").read_text().splitlines()[0])
        assert {"round", "stage", "path", "sha256s", "bytes"} <= line.keys()


def test_another_round_may_commit_while_a_large_checkpoint_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, deleting = finished_run(tmp_path, rounds=3), []

    def slowly(path: Path) -> None:
        if path.exists():
            with commit_guard(run.path, lease.token):
                deleting.append(path)
        remove(path)

    monkeypatch.setattr(retention, "remove", slowly)
    with Lease.acquire(run.path, seconds=30) as lease:
        prune(run.path, {"actor": ["update_actor"]}, 1, 0, token=lease.token)
    assert len(deleting) == 2 and _kept(run) == [3]
    assert not any(path.exists() for path in deleting)


def test_what_the_newest_weights_point_to_is_never_pruned(tmp_path: Path) -> None:
    """A role that was not trained lately carries an old checkpoint forward."""
    run = finished_run(tmp_path, rounds=3)
    with Lease.acquire(run.path, seconds=30) as lease:
        _went_on(run, 4, 1, lease.token)
        prune(run.path, {"actor": "update_actor"}, 1, 0, token=lease.token)
    assert _kept(run) == [1, 3]


@pytest.mark.parametrize("how", [{"keep_every": 4}, {"keep_every": 0, "keep": [4]}])
def test_a_kept_round_keeps_the_weights_that_it_went_on_with(tmp_path: Path, how: dict[str, Any]) -> None:
    """Round 4 is one of every fourth, and its role was not updated in it: a fork of it needs what it points to."""
    run = finished_run(tmp_path, rounds=3)
    with Lease.acquire(run.path, seconds=30) as lease:
        _went_on(run, 4, 2, lease.token)
        write_stage(run, 5, "update_actor", [], lease.token)
        prune(run.path, {"actor": "update_actor"}, 1, **how, token=lease.token)
    assert _kept(run) == [2, 5]


def test_nothing_is_pruned_where_nobody_knows_what_is_needed(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=3)
    (run.stage_path(3, "update_actor") / "weights.parquet").write_bytes(b"damaged")
    with Lease.acquire(run.path, seconds=30) as lease, pytest.raises(RecordDamaged, match=r"weights\.parquet cannot"):
        prune(run.path, {"actor": "update_actor"}, 1, 0, token=lease.token)
    assert _kept(run) == [1, 2, 3]


def test_a_stale_attempt_prunes_nothing(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=3)
    with pytest.raises(StaleAttempt):
        prune(run.path, {"actor": "update_actor"}, 1, 0, token=1)
    assert _kept(run) == [1, 2, 3]


def test_too_little_room_is_refused(tmp_path: Path) -> None:
    free = free_bytes(tmp_path / "not" / "made" / "yet")
    assert free > 0
    require_free(tmp_path / "not", needed_bytes=free // 2)
    with pytest.raises(NotEnoughDisk) as raised:
        require_free(tmp_path / "not", needed_bytes=free * 2, reserve_bytes=10**9)
    assert raised.value.exit_code == 2
    assert "1.00 GB to spare" in str(raised.value)


def test_the_cache_is_built_once_and_again_when_damaged(tmp_path: Path) -> None:
    built = []

    def build(place: Path) -> None:
        built.append(place)
        (place / "inner").mkdir()
        (place / "inner" / "index").write_bytes(b"index")

    place = cache.cached(tmp_path, "key", build)
    assert cache.cached(tmp_path, "key", build) == place == tmp_path / "cache" / "key"
    assert len(built) == 1
    for damage in (b"other", None):
        if damage is None:
            (place / "inner" / "index").unlink()
        else:
            (place / "inner" / "index").write_bytes(damage)
        assert [fault.file for fault in cache.faults(tmp_path)] == ["cache/key/inner/index"]
        cache.cached(tmp_path, "key", build)
        assert (place / "inner" / "index").read_bytes() == b"index"
        assert cache.faults(tmp_path) == []
    assert len(built) == 3
    (place / "inner" / "index").unlink()
    assert [fault.file for fault in cache.discard_damaged(tmp_path)] == ["cache/key/inner/index"]
    assert not place.exists()
    cache.cached(tmp_path, "key", build)
    with pytest.raises(ValueError, match="broke"):
        cache.cached(tmp_path, "other", _break)
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["key"]
    cache.clear(tmp_path)
    assert cache.faults(tmp_path) == []


def test_the_catalog_discards_what_is_damaged_and_keeps_the_rest(tmp_path: Path) -> None:
    whole, hurt = (cache.cached(tmp_path, key, lambda place: (place / "i").write_bytes(b"i") and None) for key in "ab")
    (hurt / "i").write_bytes(b"other")
    write_catalog(tmp_path)
    assert whole.is_dir() and not hurt.exists() and cache.faults(tmp_path) == []


def test_the_shelf_finds_and_keeps_the_youngest(tmp_path: Path) -> None:
    shelf = cache.Shelf(tmp_path)
    for number in range(4):
        place = shelf.made(f"codes-{number}", lambda place: (place / "codes").write_bytes(b"codes") and None)
        os.utime(place, ns=(number, number))
    shelf.made("other", lambda place: (place / "codes").write_bytes(b"codes") and None)
    (tmp_path / "cache" / "codes-3" / "codes").write_bytes(b"damaged")
    assert shelf.newest("codes-") == tmp_path / "cache" / "codes-2"
    assert shelf.newest("nothing-") is None
    shelf.keep("codes-", 2)
    assert sorted(entry.name for entry in (tmp_path / "cache").iterdir()) == ["codes-2", "codes-3", "other"]


def _break(place: Path) -> None:
    raise ValueError("broke")
