"""Writing a stage: equal bytes, all or nothing, one commit, a full disk."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.audit.verify import verify
from crl.errors import CrlError, DataCheckFailed, DiskFull, RunDirectoryUnusable, StageAlreadyComplete, StaleAttempt
from crl.records import Generation, Metric, Retrieval, schema_of, table_of
from crl.rounds.weights import identify
from crl.run import files
from crl.run import writer as writer_module
from crl.run.directory import RunDirectory
from crl.run.files import disk_error, hash_soon, sha256_file
from crl.run.lease import Lease
from tests.unit.run.support import digests, experiment, finished_run, inputs_of, leftovers, resume, rows, write_stage


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create_or_open(experiment(), tmp_path)


@pytest.fixture
def token(run: RunDirectory) -> Iterator[int]:
    with Lease.acquire(run.path, seconds=30) as lease:
        yield lease.token


def _commit(writer: Any, run: RunDirectory, **changes: Any) -> Any:
    return writer.commit(**{"inputs": {}, "method_digest": run.method_digest, "seed": 0, "provenance": {}, **changes})


def test_two_fresh_runs_have_equal_digests_and_another_seed_has_not(tmp_path: Path) -> None:
    first, second = finished_run(tmp_path / "a"), finished_run(tmp_path / "b")
    assert digests(first) == digests(second)
    assert len(set(digests(first).values())) == 6
    other = RunDirectory.create_or_open(experiment(seed=9), tmp_path / "c")
    with Lease.acquire(other.path, seconds=30) as lease:
        resume(other, 2, lease.token)
    assert not set(digests(other).values()) & set(digests(first).values())


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 50), max_size=4), offset=st.integers(0, 5))
def test_bytes_depend_on_rows_only_not_on_how_a_table_was_put_together(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], offset: int
) -> None:
    path = tmp_path_factory.mktemp("bytes")
    one = RunDirectory.create_or_open(experiment("one"), path)
    whole = table_of(Metric, rows(Metric, 1, "x"))
    padded = pa.concat_tables([table_of(Metric, rows(Metric, 2, "y")).slice(0, offset), whole])
    edges = [0, *sorted(cuts), 50]
    pieces = [padded.slice(offset + a, b - a) for a, b in itertools.pairwise(edges)]
    shuffled = pa.concat_tables(pieces).select(list(reversed(whole.column_names)))
    with Lease.acquire(one.path, seconds=30) as lease:
        with one.begin(1, "a", token=lease.token) as writer:
            writer.write(Metric, whole)
            first = _commit(writer, one).digested.files
        with one.begin(1, "b", token=lease.token) as writer:
            writer.write(Metric, shuffled)
            second = _commit(writer, one).digested.files
    assert first == second


def test_a_table_needs_the_schema_of_its_type(run: RunDirectory, token: int) -> None:
    table = table_of(Metric, rows(Metric, 1, "x"))
    with run.begin(1, "x", token=token) as writer:
        with pytest.raises(DataCheckFailed, match="has columns"):
            writer.write(Retrieval, table)
        with pytest.raises(DataCheckFailed, match="'name' with null values"):
            names = pa.array([None] * 50, pa.string())
            writer.write(Metric, table.set_column(2, "name", names))
        with pytest.raises(DataCheckFailed, match="does not fit its schema"):
            writer.write(Metric, table.set_column(3, "value", pa.array(["much"] * 50)))
        writer.write(Metric, table)
        with pytest.raises(CrlError, match="written twice"):
            writer.write(Metric, table)
        writer.write(Generation, schema_of(Generation).empty_table())
        assert set(writer.tables()) == {Metric, Generation}
        manifest = _commit(writer, run)
    assert manifest.rows() == {"metrics": 50, "generations": 0}
    stored = pq.read_metadata(run.stage_path(1, "x") / "metrics.parquet")
    assert stored.row_group(0).column(0).compression == "ZSTD"


def test_manifest_lists_files_inputs_shared_method_seed_and_provenance(run: RunDirectory, token: int) -> None:
    resume(run, 1, token)
    manifest = run.manifest(1, "update_actor")
    assert sorted(manifest.digested.files) == [
        "checkpoint/model.bin",
        "checkpoint/optimizer/state.bin",
        "metrics.parquet",
        "weights.parquet",
    ]
    model = manifest.digested.files["checkpoint/model.bin"]
    assert (model.sha256, model.bytes, model.rows) == (hashlib.sha256(b"\x01" * 5000).hexdigest(), 5000, None)
    assert manifest.digested.inputs == {"0001/collect": run.manifest(1, "collect").digest}
    assert (manifest.digested.method, manifest.digested.seed) == (run.method_digest, [0, 1])
    assert {"started", "committed", "seconds", "host", "token", "sequence", "command"} <= set(manifest.provenance)
    (shared,) = run.manifest(1, "collect").digested.shared
    assert (run.path / shared).read_bytes().startswith(b"bank of round 1")


def test_provenance_is_outside_the_digest_and_inputs_are_inside(run: RunDirectory, token: int) -> None:
    with run.begin(1, "a", token=token) as writer:
        a = _commit(writer, run, provenance={"host": "here"})
    made = []
    for inputs, host in (({}, "there"), ([(1, "a")], "there")):
        with run.begin(2, "b", token=token) as writer:
            made.append(_commit(writer, run, inputs=inputs, provenance={"host": host}))
        (run.stage_path(2, "b")).rename(run.path / f"moved{len(made)}")
    assert made[0].digested.inputs == {}
    assert made[1].digested.inputs == {"0001/a": a.digest}
    assert made[0].digest != made[1].digest


def test_an_error_or_no_commit_leaves_nothing(run: RunDirectory, token: int) -> None:
    with pytest.raises(ValueError, match="broke"), run.begin(1, "x", token=token) as writer:
        writer.write(Metric, table_of(Metric, rows(Metric, 1, "x")))
        raise ValueError("broke")
    with run.begin(1, "x", token=token) as writer:
        writer.write(Metric, table_of(Metric, rows(Metric, 1, "x")))
    assert not run.is_complete(1, "x")
    assert leftovers(run) == []


def test_a_complete_stage_is_not_written_again(run: RunDirectory, token: int) -> None:
    write_stage(run, 1, "plan", [], token)
    with pytest.raises(StageAlreadyComplete, match="stage plan of round 1"):
        run.begin(1, "plan", token=token)
    with run.begin(1, "late", token=token) as writer:
        run.stage_path(1, "late").mkdir()
        with pytest.raises(StageAlreadyComplete):
            _commit(writer, run)


@pytest.mark.parametrize(
    "relative", ["bank/segments/x.parquet", "/etc/{sha}", "bank/../../{sha}", "rounds/0001/{sha}", "{sha}"]
)
def test_a_shared_file_lies_inside_the_run_and_is_named_after_its_content(
    run: RunDirectory, token: int, relative: str
) -> None:
    content = b"text"
    with run.begin(1, "x", token=token) as writer, pytest.raises(CrlError):
        writer.share(relative.format(sha=hashlib.sha256(content).hexdigest()), content)


def test_a_shared_file_is_written_once_and_mended_if_damaged(run: RunDirectory, token: int) -> None:
    content = b"text" * 100
    relative = f"bank/segments/{hashlib.sha256(content).hexdigest()}.parquet"
    with run.begin(1, "x", token=token) as writer:
        writer.share(relative, content)
        before = (run.path / relative).stat()
        writer.share(relative, content)
        assert (run.path / relative).stat().st_ino == before.st_ino
        (run.path / relative).write_bytes(b"damaged")
        writer.share(relative, content)
        assert (run.path / relative).read_bytes() == content


def test_the_folders_that_sharing_makes_are_on_the_disk_before_the_commit(
    run: RunDirectory, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(writer_module, "fsync", synced.append)
    with run.begin(1, "x", token=token) as writer:
        writer.share(f"bank/segments/{hashlib.sha256(b'text').hexdigest()}.parquet", b"text")
        _commit(writer, run)
    assert synced.index(run.path / "bank") < synced.index(run.path / "rounds")


def test_what_may_not_be_read_is_not_called_unwritable() -> None:
    known = disk_error(PermissionError(errno.EACCES, "Permission denied", "/runs/x/a.parquet"), "/runs/y")
    assert isinstance(known, RunDirectoryUnusable) and known.where == "/runs/x/a.parquet"
    assert known.found == "a.parquet cannot be read or written: Permission denied"


def test_a_link_is_refused(run: RunDirectory, token: int) -> None:
    with run.begin(1, "x", token=token) as writer:
        (writer.directory / "link").symlink_to("/etc/hostname")
        with pytest.raises(CrlError, match="a link"):
            _commit(writer, run)


def test_parts_make_a_stage_with_the_digest_of_one_written_whole(tmp_path: Path) -> None:
    content = b"shared by a part"
    relative = f"bank/segments/{hashlib.sha256(content).hexdigest()}.parquet"
    table = table_of(Metric, rows(Metric, 1, "x"))
    made = []
    for name, parts in (("whole", 0), ("three", 3)):
        run = RunDirectory.create_or_open(experiment(name), tmp_path)
        with Lease.acquire(run.path, seconds=30) as lease:
            write_stage(run, 1, "plan", [], lease.token)
            edges = [50 * i // parts for i in range(parts + 1)] if parts else []
            for part in reversed(range(parts)):
                assert not run.part_is_complete(1, "x", part)
                with run.begin_part(1, "x", part, token=lease.token) as writer:
                    writer.write(Metric, table.slice(edges[part], edges[part + 1] - edges[part]))
                    writer.share(relative, content)
                    _commit(writer, run, inputs=[(1, "plan")])
                assert run.part_is_complete(1, "x", part)
                assert run.part_inputs(1, "x", part) == {(1, "plan")}
            assert not run.is_complete(1, "x")
            with run.begin(1, "x", token=lease.token) as writer:
                if parts:
                    pieces = [run.read_part(1, "x", part, Metric) for part in range(parts)]
                    writer.write(Metric, pa.concat_tables(pieces))
                else:
                    writer.write(Metric, table)
                    writer.share(relative, content)
                made.append(_commit(writer, run, inputs=[(1, "plan")]).digest)
        assert leftovers(run) == []
        assert verify(run.path) == []
    assert made[0] == made[1]


def test_a_part_made_from_something_else_or_damaged_is_not_used(run: RunDirectory, token: int) -> None:
    write_stage(run, 1, "plan", [], token)

    def make_part() -> Path:
        with run.begin_part(1, "x", 0, token=token) as writer:
            writer.write(Metric, table_of(Metric, rows(Metric, 1, "x")))
            _commit(writer, run, inputs=[(1, "plan")])
        return run.path / "rounds" / "0001" / ".parts-x" / "0000"

    (make_part() / "metrics.parquet").write_bytes(b"damaged")
    assert not run.part_is_complete(1, "x", 0)
    make_part()
    assert run.part_is_complete(1, "x", 0)
    run.stage_path(1, "plan").rename(run.path / "aside")
    with run.begin(1, "plan", token=token) as writer:
        _commit(writer, run, seed=99)
    assert not run.part_is_complete(1, "x", 0)


def test_a_large_file_is_read_once_to_be_hashed(run: RunDirectory, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(files, "sha256_file", lambda path: read.append(path.name) or sha256_file(path))
    with run.begin(1, "plan", token=token) as writer:
        checkpoint = writer.directory / "checkpoint"
        checkpoint.mkdir()
        for name, size in (("model.bin", 3 << 20), ("state.bin", 2 << 20), ("config.json", 7)):
            (checkpoint / name).write_bytes(bytes(size))
        hash_soon([checkpoint / "model.bin"])
        identify("0" * 64, checkpoint)
        manifest = _commit(writer, run)
    assert sorted(read) == ["config.json", "model.bin", "state.bin"]
    found = {name: each.sha256 for name, each in manifest.digested.files.items()}
    assert found["checkpoint/model.bin"] == hashlib.sha256(bytes(3 << 20)).hexdigest()
    assert verify(run.path) == []


def _no_space(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["write_table", "fsync_tree", "write_atomically", "fsync"])
def test_no_space_is_named_and_leaves_the_last_commit(
    run: RunDirectory, token: int, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write_stage(run, 1, "plan", [], token)
    with monkeypatch.context() as patched:
        patched.setattr(pq if what == "write_table" else writer_module, what, _no_space)
        with pytest.raises(DiskFull) as raised:
            write_stage(run, 1, "collect", inputs_of(1, "collect"), token)
    assert raised.value.transient
    assert leftovers(run) == []
    assert verify(run.path) == []
    assert run.complete_stages(1) == ["plan"]
    resume(run, 1, token)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_really_fills_up(small_disk: Path) -> None:
    run = RunDirectory.create_or_open(experiment(), small_disk)
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, 1, lease.token)
        with pytest.raises(DiskFull), run.begin(2, "plan", token=lease.token) as writer:
            (writer.directory / "model.bin").write_bytes(bytes(2_000_000))
        with pytest.raises(DiskFull), run.begin(2, "plan", token=lease.token) as writer:
            filler = writer.directory / "filler"
            try:
                with filler.open("wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
            except OSError:
                pass
            raise RuntimeError("a library that hides why it failed")
        assert leftovers(run) == []
        assert verify(run.path) == []
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
            while True:
                if not file.write(bytes(512)):
                    raise OSError(errno.ENOSPC, "No space")
        with pytest.raises(DiskFull):
            write_stage(run, 2, "plan", inputs_of(2, "plan"), lease.token)
        filler.unlink()
        assert resume(run, 2, lease.token) == ["0002/plan", "0002/collect", "0002/update_actor"]
    assert verify(run.path) == []


def test_a_stale_token_cannot_begin_or_commit(run: RunDirectory) -> None:
    first = Lease.acquire(run.path, seconds=30)
    writer = run.begin(1, "plan", token=first.token)
    writer.write(Metric, table_of(Metric, rows(Metric, 1, "plan")))
    first.release()
    with pytest.raises(StaleAttempt, match="given back"):
        _commit(writer, run)
    with Lease.acquire(run.path, seconds=30) as second:
        assert second.token > first.token
        with pytest.raises(StaleAttempt, match="taken over: token 2"):
            _commit(writer, run)
        with pytest.raises(StaleAttempt):
            run.begin(1, "plan", token=first.token)
        assert leftovers(run) == []
        assert not run.is_complete(1, "plan")
        write_stage(run, 1, "plan", [], second.token)
