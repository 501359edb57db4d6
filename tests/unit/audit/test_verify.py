"""Damage any one file of a run: verification names exactly that file, what was expected, what was found, what mends."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.audit.redo import set_aside
from crl.audit.verify import Problem, Severity, problems_in, record_of, require_intact, verify
from crl.errors import RecordDamaged, RunDirectoryUnusable
from crl.run import cache
from crl.run.directory import RunDirectory
from crl.run.files import sha256_file
from crl.run.lease import Lease
from crl.run.manifest import Manifest
from crl.run.retention import prune
from tests.marks import sampled
from tests.unit.run.support import digests, experiment, finished_run, inputs_of, resume, stages_of, write_stage


def _whole_run(root: Path) -> RunDirectory:
    """A run with one of everything: bank files, checkpoints, a pruned one, a cache, a catalog."""
    run = finished_run(root, rounds=3)
    with Lease.acquire(run.path, seconds=30) as lease:
        prune(run.path, {"actor": "update_actor"}, 2, 0, token=lease.token)
    cache.cached(run.path, "a" * 64, lambda place: (place / "anything").write_bytes(b"index" * 100) and None)
    (run.path / "catalog.duckdb").write_bytes(b"\0" * 8 + b"DUCK" + b"views" * 50)
    cache.seal(run.path, "catalog.duckdb", run.path / "catalog.duckdb")
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return _whole_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def run(whole: RunDirectory, tmp_path: Path) -> RunDirectory:
    shutil.copytree(whole.path, tmp_path / "small", copy_function=shutil.copy2)
    return RunDirectory.open(tmp_path / "small")


def _corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 0x10
        path.write_bytes(bytes(content))
    else:
        path.write_bytes(b"?")


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _delete(path: Path) -> None:
    path.unlink()


def _damaged(run: RunDirectory) -> list[Problem]:
    return [problem for problem in verify(run.path) if problem.severity is Severity.damaged]


def test_a_whole_run_has_no_problem(run: RunDirectory) -> None:
    assert verify(run.path) == []
    assert verify(run.path, deep=False) == []
    require_intact(run.path)


@pytest.mark.parametrize("damage", sampled([_corrupt, _truncate, _delete], 3), ids=["corrupt", "truncate", "delete"])
def test_any_one_damaged_file_is_named_alone(run: RunDirectory, damage: Callable[[Path], None]) -> None:
    files = sorted(path for path in run.path.rglob("*") if path.is_file())
    assert len(files) > 35
    for path in files:
        name, before = path.relative_to(run.path).as_posix(), path.read_bytes()
        if damage is _truncate and not before:
            continue
        damage(path)
        problems = verify(run.path)
        if name in {"journal.jsonl", "pruned.jsonl"}:
            assert problems == [], "they are in no digest, and each of them alone names what was pruned"
            path.write_bytes(before)
            continue
        assert [problem.file for problem in problems] == [name]
        (problem,) = problems
        assert problem.expected
        assert problem.found
        assert problem.expected != problem.found
        self_made = name.startswith(("cache/", "catalog"))
        kept = name in {"lease.json", "lease.lock"}
        if self_made:
            assert (problem.severity, problem.mend) == (Severity.derived, f"crl catalog {run.path}")
        elif kept:
            assert (problem.severity, problem.mend) == (Severity.housekeeping, f"crl resume {run.path}")
        else:
            assert problem.severity is Severity.damaged
            with pytest.raises(RecordDamaged, match=r"expected") as raised:
                require_intact(run.path)
            assert raised.value.next_step == problem.mend
            assert raised.value.exit_code == 4
        if name.startswith("rounds/"):
            _, number, stage, *_ = name.split("/")
            assert (problem.round, problem.stage) == (int(number), stage)
            assert problem.mend == f"crl redo {run.path} --from {number}/{stage}"
            if not name.endswith("manifest.json"):
                recorded = run.manifest(int(number), stage).digested.files[name.split("/", 3)[3]]
                assert problem.expected == recorded.sha256
        if name.startswith("bank/"):
            assert problem.expected == hashlib.sha256(before).hexdigest()
            assert problem.mend.startswith(f"crl redo {run.path} --from 000")
        path.write_bytes(before)
    assert verify(run.path) == []


def test_every_byte_of_a_manifest_counts(run: RunDirectory) -> None:
    path = run.stage_path(1, "plan") / "manifest.json"
    content = path.read_bytes()
    for place in range(0, len(content), 23):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert [problem.file for problem in _damaged(run)] == ["rounds/0001/plan/manifest.json"]
    path.write_bytes(content)


def test_a_stage_that_is_gone_is_named_by_what_was_made_from_it(run: RunDirectory) -> None:
    expected = run.manifest(2, "collect").digest
    shutil.rmtree(run.stage_path(2, "collect"))
    (problem,) = _damaged(run)
    assert (problem.file, problem.found) == ("rounds/0002/collect", "no such stage")
    assert problem.expected == f"digest {expected} (read by 0002/update_actor)"
    assert problem.mend == f"crl redo {run.path} --from 0002/collect"


def test_a_stage_replaced_by_a_consistent_other_one_breaks_the_chain(run: RunDirectory) -> None:
    directory = run.stage_path(2, "plan")
    manifest = Manifest.load(directory)
    forged = Manifest.seal(manifest.digested.model_copy(update={"seed": 7}), manifest.provenance)
    (directory / "manifest.json").write_bytes(forged.render())
    (problem,) = _damaged(run)
    assert problem.file == "rounds/0002/plan/manifest.json"
    assert problem.expected.startswith(f"digest {manifest.digest}")
    assert problem.found == f"digest {forged.digest}"


def test_a_file_no_stage_wrote_is_named_with_the_command_that_moves_it(run: RunDirectory) -> None:
    for name in ("rounds/0001/plan/extra.txt", "rounds/0002/update_actor/checkpoint/x", "rounds/0001/x", "rounds/x"):
        path = run.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("extra")
        (problem,) = _damaged(run)
        assert problem.file == name
        assert problem.mend == f"mkdir -p {run.path}/damaged && mv {path} {run.path}/damaged/"
        path.unlink()


def test_what_is_unfinished_is_no_problem(run: RunDirectory) -> None:
    for name in (".tmp-plan-7", ".parts-collect/0000"):
        (run.path / "rounds" / "0003" / name).mkdir(parents=True)
    (run.path / "rounds" / "0003" / ".tmp-plan-7" / "half.parquet").write_text("half")
    assert verify(run.path) == []


def test_a_pruned_checkpoint_is_accepted_only_whole_and_only_that_one(run: RunDirectory) -> None:
    gone = run.stage_path(1, "update_actor") / "checkpoint"
    assert not gone.exists()
    assert _damaged(run) == []
    shutil.rmtree(run.stage_path(2, "update_actor") / "checkpoint")
    assert {problem.file for problem in _damaged(run)} == {
        "rounds/0002/update_actor/checkpoint/model.bin",
        "rounds/0002/update_actor/checkpoint/optimizer/state.bin",
    }


def test_a_checkpoint_that_is_pruned_meanwhile_is_no_damage(run: RunDirectory) -> None:
    record = record_of(run.path)
    with Lease.acquire(run.path, seconds=30) as lease:
        assert prune(run.path, {"actor": "update_actor"}, 1, 0, token=lease.token)
    assert problems_in(record) == []


def test_a_file_that_vanishes_while_it_is_read_is_missing(run: RunDirectory) -> None:
    record, victim = record_of(run.path), run.stage_path(2, "collect") / "metrics.parquet"

    def digest_of(path: Path) -> str:
        if path == victim:
            path.unlink()
        return sha256_file(path)

    record.digest_of = digest_of
    (problem,) = problems_in(record)
    assert (problem.file, problem.found) == ("rounds/0002/collect/metrics.parquet", "no such file")


def test_without_depth_only_presence_and_size_are_compared(run: RunDirectory) -> None:
    path = run.stage_path(3, "update_actor") / "checkpoint" / "model.bin"
    _corrupt(path)
    assert verify(run.path, deep=False) == []
    _truncate(path)
    assert [problem.file for problem in verify(run.path, deep=False)] == [path.relative_to(run.path).as_posix()]


def test_an_experiment_file_that_no_stage_was_made_with_is_named_and_not_the_stages(run: RunDirectory) -> None:
    other = RunDirectory.create_or_open(experiment("other", seed=5), run.path.parent)
    shutil.copy(other.path / "experiment.yaml", run.path / "experiment.yaml")
    (problem,) = _damaged(run)
    assert (problem.file, problem.found) == ("experiment.yaml", f"method {other.method_digest}")
    assert problem.expected == f"method {run.method_digest}"
    subprocess.run(problem.mend, shell=True, check=True)
    assert [each.found for each in _damaged(run)] == ["no such file"]
    RunDirectory.create_or_open(experiment("small"), run.path.parent)
    assert verify(run.path) == []


def test_one_stage_of_another_method_is_named(run: RunDirectory) -> None:
    directory = run.stage_path(3, "update_actor")
    manifest = Manifest.load(directory)
    other = manifest.digested.model_copy(update={"method": "1" * 64})
    (directory / "manifest.json").write_bytes(Manifest.seal(other, manifest.provenance).render())
    assert [problem.file for problem in _damaged(run)] == ["rounds/0003/update_actor/manifest.json"]


def test_the_next_attempt_mends_housekeeping(run: RunDirectory) -> None:
    for name in ("lease.json", "lease.lock"):
        for damage in (_corrupt, _delete):
            damage(run.path / name)
            assert [problem.file for problem in verify(run.path)] == [name]
            with Lease.acquire(run.path, seconds=30):
                pass
            assert verify(run.path) == []


@pytest.mark.parametrize("damage", [_corrupt, _truncate, _delete], ids=["corrupt", "truncate", "delete"])
@pytest.mark.parametrize(
    "name",
    ["rounds/0002/collect/metrics.parquet", "rounds/0001/plan/manifest.json", "rounds/0003/update_actor", "bank"],
)
def test_the_mending_command_mends(run: RunDirectory, name: str, damage: Callable[[Path], None]) -> None:
    before = digests(run)
    place = run.path / name
    path = place if place.is_file() else next(file for file in sorted(place.rglob("*")) if file.is_file())
    damage(path)
    (problem,) = _damaged(run)
    number, stage = problem.round, problem.stage
    assert number is not None
    assert stage is not None
    with Lease.acquire(run.path, seconds=30) as lease:
        moved = set_aside(run.path, number, stage, stages_of, token=lease.token)
        assert moved
        require_intact(run.path)
        made = resume(run, 3, lease.token)
    assert made[0] == f"{moved[0][0]:04d}/{moved[0][1]}"
    assert digests(run) == before
    assert verify(run.path) == []
    kept = run.path / "damaged" / "1" / "rounds"
    assert sorted(entry.name for entry in kept.glob("*/*")) == sorted(stage for _, stage in moved)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryUnusable):
        verify(tmp_path / "nowhere")


def test_a_redone_stage_may_not_lack_a_checkpoint_that_was_pruned_before(run: RunDirectory) -> None:
    """The list of pruned checkpoints excuses the one it was written for, not a later one in its place."""
    with Lease.acquire(run.path, seconds=30) as lease:
        set_aside(run.path, 1, "update_actor", stages_of, token=lease.token)
        write_stage(run, 1, "update_actor", inputs_of(1, "update_actor"), lease.token)
    shutil.rmtree(run.stage_path(1, "update_actor") / "checkpoint")
    assert {problem.file.split("/")[2] for problem in _damaged(run)} == {"update_actor"}
