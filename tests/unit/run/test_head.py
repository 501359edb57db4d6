"""The head of a run, kept elsewhere: a forged and resealed stage is seen even where everything inside agrees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crl.audit.redo import set_aside
from crl.audit.verify import verify
from crl.errors import BadInput, RecordDamaged
from crl.run import head
from crl.run.directory import manifests
from crl.run.head import checked_form, head_after, head_line, heads, hold_against
from crl.run.journal import JOURNAL
from crl.run.lease import Lease
from crl.run.manifest import MANIFEST, Manifest
from tests.unit.run.support import finished_run, resume, stages_of


def always(number: int) -> bool:
    """Every round is complete."""
    return True


def test_heads_stay_while_the_run_goes_on(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=2)
    before = heads(manifests(run.path))
    assert list(before) == [1, 2] and head_line(manifests(run.path), always) == f"head: {before[2]} (after round 2)"
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, 3, lease.token)
    after = heads(manifests(run.path))
    assert after.items() > before.items() and len(set(after.values())) == 3
    assert [hold_against(run.path, manifests(run.path), after[number]) for number in (1, 2, 3)] == [1, 2, 3]


def test_a_forged_and_resealed_last_stage_and_a_deleted_round_have_another_head(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=2)
    kept = heads(manifests(run.path))[2]
    (run.path / JOURNAL).unlink()  # whoever forges takes it along
    directory = run.stage_path(2, "update_actor")
    manifest = Manifest.load(directory)
    forged = Manifest.seal(manifest.digested.model_copy(update={"seed": 7}), manifest.provenance)
    (directory / MANIFEST).write_bytes(forged.render())
    assert verify(run.path) == [], "nothing inside the run tells"
    with pytest.raises(RecordDamaged, match="a different head") as raised:
        hold_against(run.path, manifests(run.path), kept)
    assert raised.value.exit_code == 4 and kept in str(raised.value.expected)
    assert heads(manifests(run.path))[2] in raised.value.found and "manifest.json" in str(raised.value.next_step)
    shutil.rmtree(run.path / "rounds" / "0002")
    with pytest.raises(RecordDamaged):
        hold_against(run.path, manifests(run.path), kept)


def test_no_stage_and_a_damaged_manifest_have_no_head(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=1)
    (run.stage_path(1, "plan") / MANIFEST).write_text("?")
    assert "rounds/0001/plan" in str(head_line(manifests(run.path), always))
    shutil.rmtree(run.path / "rounds")
    assert head_line(manifests(run.path), always) is None


def test_what_is_no_digest_is_refused() -> None:
    assert checked_form("AB" * 32) == "ab" * 32
    with pytest.raises(BadInput) as raised:
        checked_form("abc")
    assert raised.value.exit_code == 2


def test_the_head_that_is_told_is_that_of_a_complete_round(tmp_path: Path) -> None:
    """In the middle of a round there is one that fits no later state."""
    run = finished_run(tmp_path, rounds=2)
    kept = heads(manifests(run.path))

    def complete(number: int) -> bool:
        return set(run.complete_stages(number)) == set(stages_of(number))

    assert head_line(manifests(run.path), complete) == f"head: {kept[2]} (after round 2)"
    shutil.rmtree(run.stage_path(2, "update_actor"))
    assert head_line(manifests(run.path), complete) == f"head: {kept[1]} (after round 1)"
    shutil.rmtree(run.stage_path(1, "plan"))
    assert head_line(manifests(run.path), complete) is None


def test_the_head_at_the_end_of_a_round_is_the_one_that_holds_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(tmp_path, rounds=2)
    told = [head_after(run.path, number) for number in (1, 2)]
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, 3, lease.token)
    read: list[int] = []
    whole = head.stage_manifests
    monkeypatch.setattr(head, "stage_manifests", lambda path, number: read.append(number) or whole(path, number))
    assert [*told, head_after(run.path, 3)] == list(heads(manifests(run.path)).values())
    assert read == [3], "the other rounds are as they were"
    (run.stage_path(3, "plan") / MANIFEST).write_text("?")
    with Lease.acquire(run.path, seconds=30) as lease:
        set_aside(run.path, 3, "update_actor", stages_of, token=lease.token)
    with pytest.raises(RecordDamaged, match="manifest"):
        head_after(run.path, 3)
