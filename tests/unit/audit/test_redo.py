"""Setting aside: what goes, what stays, and how far back a pruned checkpoint forces it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crl.audit.redo import planned, set_aside
from crl.audit.verify import Severity, require_intact, verify
from crl.errors import BadInput, StaleAttempt
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from crl.run.lease import Lease
from crl.run.retention import prune
from tests.unit.run.support import ORDER, experiment, finished_run, stages_of, write_stage


def _keys(moved: list[tuple[int, str]]) -> list[str]:
    return [f"{number}/{stage}" for number, stage in moved]


def test_a_stage_goes_with_everything_after_it(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=2)
    with Lease.acquire(run.path, seconds=30) as lease:
        moved = set_aside(run.path, 1, "collect", stages_of, token=lease.token)
    assert _keys(moved) == ["1/collect", "1/update_actor", "2/plan", "2/collect", "2/update_actor"]
    assert (run.rounds(), run.complete_stages(1)) == ([1], ["plan"])
    assert (run.path / "damaged" / "1" / "rounds" / "0002" / "plan" / "manifest.json").is_file()
    event = next(event for event in Journal(run.path).read() if event["event"] == "set_aside")
    assert event["directory"] == "damaged/1"
    require_intact(run.path)


def test_a_reader_that_stands_before_it_in_the_order_goes_too(tmp_path: Path) -> None:
    run = RunDirectory.create_or_open(experiment(), tmp_path)
    with Lease.acquire(run.path, seconds=30) as lease:
        write_stage(run, 1, "a", [], lease.token)
        write_stage(run, 1, "b", [(1, "a")], lease.token)
        write_stage(run, 1, "c", [], lease.token)
        moved = set_aside(run.path, 1, "a", lambda number: ["b", "c", "a"], token=lease.token)
    assert _keys(moved) == ["1/b", "1/a"]


def test_a_stage_that_is_gone_takes_its_readers(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=2)
    run.stage_path(1, "collect").rename(tmp_path / "gone")
    with Lease.acquire(run.path, seconds=30) as lease:
        moved = set_aside(run.path, 1, "collect", stages_of, token=lease.token)
    assert _keys(moved) == ["1/update_actor", "2/plan", "2/collect", "2/update_actor"]


def test_what_goes_is_known_before_with_what_it_took(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=2)
    plan = planned(run.path, 2, "collect", stages_of)
    assert _keys(plan.stages) == ["2/collect", "2/update_actor"] and plan.before is None
    taken = [run.manifest(*place).provenance.get("seconds", 0.0) for place in plan.stages]
    assert plan.seconds == sum(taken)
    assert run.complete_stages(2) == list(ORDER), "nothing moved"


def test_a_copy_of_a_stage_is_no_stage_to_take_back(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=3)
    shutil.copytree(run.stage_path(1, "collect"), run.stage_path(1, "collect_copy"))
    with pytest.raises(BadInput, match="1/collect_copy is no stage of this run") as refused:
        planned(run.path, 1, "collect_copy", stages_of)
    assert refused.value.next_step is not None and "mv " in refused.value.next_step


def test_parts_of_what_is_not_finished_go_too(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=1)
    with Lease.acquire(run.path, seconds=30) as lease:
        with run.begin_part(2, "plan", 0, token=lease.token) as writer:
            writer.commit(inputs=[(1, "update_actor")], method_digest=run.method_digest, seed=0, provenance={})
        set_aside(run.path, 1, "update_actor", stages_of, token=lease.token)
        assert not run.part_is_complete(2, "plan", 0)
    assert (run.path / "damaged" / "1" / "rounds" / "0002" / ".parts-plan" / "0000").is_dir()


def test_a_needed_checkpoint_that_was_pruned_is_made_again(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=5)
    with Lease.acquire(run.path, seconds=30) as lease:
        # Round 2 is kept by the interval, 1, 3 and 4 are pruned.
        prune(run.path, {"actor": "update_actor"}, 1, 2, token=lease.token)
        kept = [n for n in range(1, 6) if (run.stage_path(n, "update_actor") / "checkpoint").is_dir()]
        assert kept == [2, 4, 5]
        moved = set_aside(run.path, 4, "collect", stages_of, token=lease.token)
    # Collecting round 4 plays with the weights of round 3: those are made again, from the kept ones of round 2.
    assert _keys(moved)[:3] == ["3/update_actor", "4/plan", "4/collect"]
    assert run.complete_stages(3) == ["plan", "collect"]


def test_what_is_not_there_is_refused_and_a_stale_token_too(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=1)
    with Lease.acquire(run.path, seconds=30) as lease:
        with pytest.raises(BadInput, match="no round 9"):
            set_aside(run.path, 9, "plan", stages_of, token=lease.token)
        with pytest.raises(StaleAttempt):
            set_aside(run.path, 1, "plan", stages_of, token=lease.token - 1)
    assert run.complete_stages(1) == list(ORDER)


def test_weights_that_cannot_be_read_point_to_nothing(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=2)
    (run.stage_path(1, "update_actor") / "weights.parquet").write_bytes(b"damaged")
    shutil.rmtree(run.stage_path(2, "update_actor"))
    assert [problem.severity for problem in verify(run.path)] == [Severity.damaged, Severity.lost]
    with Lease.acquire(run.path, seconds=30) as lease:
        assert _keys(set_aside(run.path, 2, "plan", stages_of, token=lease.token)) == ["2/plan", "2/collect"]


def test_what_is_moved_is_on_the_disk_in_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_run(tmp_path, rounds=1)
    synced: list[Path] = []
    monkeypatch.setattr("crl.run.files.fsync", synced.append)
    with Lease.acquire(run.path, seconds=30) as lease:
        set_aside(run.path, 1, "update_actor", stages_of, token=lease.token)
    aside = run.path / "damaged" / "1" / "rounds" / "0001"
    assert {run.path / "rounds" / "0001", aside, *aside.parents[:4]} <= set(synced)
