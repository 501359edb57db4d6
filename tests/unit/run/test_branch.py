"""A run that holds the first rounds of another one: whole or not there at all, and its own from then on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crl.audit.redo import set_aside
from crl.audit.verify import verify
from crl.errors import BadInput, RecordDamaged
from crl.run.branch import Branch, make_branch
from crl.run.directory import RunDirectory, manifests
from crl.run.find import find_run
from crl.run.head import heads
from crl.run.lease import Lease
from crl.run.lineage import LINEAGE, load_lineage
from crl.run.pruned import Pruned, pruned
from crl.run.retention import prune
from tests.marks import sampled
from tests.unit.run import jobs
from tests.unit.run.killed import run_killed
from tests.unit.run.support import digests, experiment, finished_run, resume, stages_of

UPDATES = {"actor": "update_actor"}
PLAY = {"rollout": {"group_size": 6}}
"""Another method."""


def branched(parent: RunDirectory, number: int, name: str = "child", **method: Any) -> RunDirectory:
    return make_branch(Branch(parent, number), experiment(name, **method), parent.path.parent, lambda directory: None)


def go_on(run: RunDirectory, rounds: int) -> list[str]:
    with Lease.acquire(run.path, seconds=30) as lease:
        return resume(run, rounds, lease.token)


def files(run: RunDirectory) -> Iterator[Path]:
    return (path for path in sorted(run.path.rglob("*")) if path.is_file())


def test_it_has_the_parents_rounds_and_head_and_goes_on_by_itself(tmp_path: Path) -> None:
    parent = finished_run(tmp_path, 3)
    before = {path: path.read_bytes() for path in files(parent)}
    child = branched(parent, 2, **PLAY)
    assert heads(manifests(child.path))[2] == heads(manifests(parent.path))[2]
    assert go_on(child, 3) == ["0003/plan", "0003/collect", "0003/update_actor"]
    assert child.manifest(3, "plan").digested.inputs == {"0002/update_actor": parent.manifest(2, "update_actor").digest}
    assert verify(child.path) == [] and verify(parent.path) == []
    assert {path: path.read_bytes() for path in files(parent)} == before, "nothing is written into the parent"
    shutil.rmtree(parent.path)
    assert verify(child.path) == []


def test_each_prunes_redoes_and_damages_its_own(tmp_path: Path) -> None:
    parent = finished_run(tmp_path, 3)
    child = branched(parent, 2)
    go_on(child, 4)
    with Lease.acquire(child.path, seconds=30) as lease:
        assert [entry.round for entry in prune(child.path, UPDATES, 2, 0, token=lease.token)] == [1, 2]
        with pytest.raises(BadInput, match="0002/plan was made by small"):
            set_aside(child.path, 2, "plan", stages_of, token=lease.token)
        # The checkpoint that round 3 began with was pruned, and the stage that wrote it is the parent's.
        with pytest.raises(BadInput, match=r"0001/update_actor was made by small.*needs its checkpoint"):
            set_aside(child.path, 3, "plan", stages_of, token=lease.token)
        assert set_aside(child.path, 4, "update_actor", stages_of, token=lease.token) == [(4, "update_actor")]
    assert verify(parent.path) == [] and (parent.path / "rounds/0002/update_actor/checkpoint").is_dir()
    again = branched(parent, 2, "again")
    assert [entry.round for entry in pruned(again.path)] == []
    half = branched(child, 1, "half")
    assert [entry.round for entry in pruned(half.path)] == [1] and verify(half.path) == []


def test_without_hard_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Any, **options: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    parent = finished_run(tmp_path, 2)
    linked = branched(parent, 2, "linked")
    create = os.link
    monkeypatch.setattr(
        "crl.run.branch.os.link", lambda source, target: refuse() if "rounds" in str(source) else create(source, target)
    )
    copied = branched(parent, 2)
    assert verify(copied.path) == [] and digests(copied) == digests(parent)
    name = "rounds/0001/collect/metrics.parquet"
    inodes = [(run.path / name).stat().st_ino for run in (parent, linked, copied)]
    assert inodes[0] == inodes[1] != inodes[2]


@pytest.mark.parametrize("kill_at", sampled([17, 1, 4, 9, 26, 40, 55], 7))
def test_killed_at_any_file_operation_there_is_no_run_or_a_whole_one(tmp_path: Path, kill_at: int) -> None:
    finished_run(tmp_path, 2)
    assert not run_killed(jobs.fork_after_first_round, tmp_path, kill_at=kill_at)
    assert verify(tmp_path / "small") == []
    assert not (tmp_path / "child").exists(), "killed before the rename"
    with pytest.raises(BadInput, match="there is no run") as error:
        find_run(tmp_path / "child")
    assert ".tmp" not in str(error.value)
    jobs.fork_after_first_round(tmp_path)
    assert verify(tmp_path / "child") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child", "small"], "typed again, it sweeps"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    parent = finished_run(tmp_path, 2)
    damaged = parent.path / "rounds/0001/collect/metrics.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(RecordDamaged, match=r"0001/collect/metrics.parquet of the parent"):
        branched(parent, 2)
    with pytest.raises(BadInput, match="already"):
        branched(parent, 2, "small")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_a_parent_that_prunes_meanwhile_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = finished_run(tmp_path, 3)

    def then_pruned(path: Path) -> list[Pruned]:
        before = pruned(path)
        with Lease.acquire(path, seconds=30) as lease:
            prune(path, UPDATES, 1, 0, token=lease.token)
        return before

    with monkeypatch.context() as patch:
        patch.setattr("crl.run.branch.pruned", then_pruned)
        with pytest.raises(RecordDamaged, match="was pruned while the run was forked") as raised:
            branched(parent, 2)
    assert raised.value.next_step == "fork it again"
    assert verify(branched(parent, 2).path) == []


@pytest.mark.parametrize("damage", ["gone", "changed", "other head"])
def test_the_lineage_is_part_of_what_is_verified(tmp_path: Path, damage: str) -> None:
    parent = finished_run(tmp_path, 2)
    child = branched(parent, 1, **PLAY)
    go_on(child, 2)
    path = child.path / LINEAGE
    match damage:
        case "gone":
            path.unlink()
        case "changed":
            path.write_bytes(path.read_bytes().replace(b'"round": 1', b'"round": 2'))
            with pytest.raises(RecordDamaged, match="was changed"):
                load_lineage(child.path)
        case _:  # sealed again by somebody who knows how
            [ancestor] = child.lineage.ancestors
            forged = type(child.lineage)((ancestor.model_copy(update={"head": "0" * 64}),))
            path.write_bytes(forged.render())
    [problem] = verify(child.path)
    assert problem.file == ("rounds" if damage == "other head" else LINEAGE)
    assert problem.mend.startswith("crl fork ") and problem.mend.endswith("--round 1 --name child-again")


def test_a_damaged_file_of_the_parents_rounds_is_the_parents_to_make(tmp_path: Path) -> None:
    parent = finished_run(tmp_path, 2)
    child = branched(parent, 1)
    (child.path / "rounds/0001/collect/metrics.parquet").unlink()
    [problem] = verify(child.path)
    assert problem.mend == "crl fork small --round 1 --name child-again" and verify(parent.path) == []


def test_an_experiment_file_that_is_lost_comes_back(tmp_path: Path) -> None:
    parent = finished_run(tmp_path, 2)
    made = experiment("child", **PLAY)
    child = make_branch(Branch(parent, 1), made, tmp_path, lambda directory: None)
    (child.path / "experiment.yaml").unlink()
    assert RunDirectory.create_or_open(made, tmp_path).lineage == child.lineage
    assert verify(child.path) == []
