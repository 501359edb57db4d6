"""Evaluations kept beside the record: written once, never overwritten, held against what they were played with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crl.audit.verify import Severity, require_intact, verify
from crl.errors import RecordDamaged, RunDirectoryUnusable
from crl.records import Evaluation
from crl.run import experiment_file
from crl.run.directory import RunDirectory
from crl.run.evaluations import EVALUATIONS, Kept, keep_evaluation, kept_evaluations
from crl.run.files import machine_digest, sweep
from tests.unit.engine.harness import make_experiment
from tests.unit.report.builder import build_run, evaluation

SETTINGS = {"conditions": ["without_bank"], "seeds": {"room": [1, 3]}}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    path = build_run(tmp_path / "room")
    made = make_experiment(recipe={"kind": "complementary"}).model_copy(update={"name": "room"})
    experiment_file.create(path, made)
    return RunDirectory.open(path)


def rows(*won: bool, number: int = 2) -> list[Evaluation]:
    return [evaluation(number, "without_bank", seed, each) for seed, each in enumerate(won, start=1)]


def inputs(run: RunDirectory) -> dict[str, str]:
    return {"0001/update_actor": run.manifest(1, "update_actor").digest}


def keep(run: RunDirectory, *won: bool) -> tuple[Path, bool]:
    return keep_evaluation(run, 2, rows(*won), inputs(run), SETTINGS)


def usable(run: RunDirectory) -> list[Kept]:
    return [each for each in kept_evaluations(run) if isinstance(each, Kept)]


def test_what_is_kept_is_read_as_it_was(run: RunDirectory) -> None:
    path, new = keep(run, True, False, True)
    [kept] = usable(run)
    assert new and kept.path == path and path.parent == run.path / EVALUATIONS
    assert (kept.round, kept.rows, kept.settings, kept.inputs) == (2, rows(True, False, True), SETTINGS, inputs(run))


def test_the_same_again_is_the_same_and_any_other_has_its_own_place(run: RunDirectory) -> None:
    first, _ = keep(run, True, False)
    before = {path: path.read_bytes() for path in first.iterdir()}
    assert keep(run, True, False) == (first, False)
    other, new = keep(run, True, False, False)
    assert new and other != first
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    assert sorted(each.path for each in usable(run)) == sorted([first, other])


def test_the_record_does_not_know_of_it(run: RunDirectory) -> None:
    head = {stage: run.manifest(2, stage).digest for stage in run.complete_stages(2)}
    before = [str(problem) for problem in verify(run.path)]
    keep(run, True)
    assert [str(problem) for problem in verify(run.path)] == before
    assert {stage: run.manifest(2, stage).digest for stage in run.complete_stages(2)} == head


def test_a_damaged_one_is_named_and_set_aside_when_it_is_made_again(run: RunDirectory) -> None:
    path, _ = keep(run, True, False)
    file = path / "evaluations.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    [error] = kept_evaluations(run)
    assert isinstance(error, RecordDamaged) and path.name in error.found
    [problem] = [each for each in verify(run.path) if each.file.startswith(EVALUATIONS)]
    assert problem.severity is Severity.derived and problem.file == f"{EVALUATIONS}/{path.name}"
    assert problem.mend.startswith("mkdir -p") and str(path) in problem.mend
    assert keep(run, True, False) == (path, True)
    assert [each.rows for each in usable(run)] == [rows(True, False)]
    assert (run.path / "damaged/1" / EVALUATIONS / path.name / "evaluations.parquet").is_file()


def test_training_goes_on_beside_a_damaged_one(run: RunDirectory) -> None:
    path, _ = keep(run, True)
    (path / "manifest.json").write_text("{}", encoding="utf-8")
    said: list[str] = []
    try:
        require_intact(run.path)
    except RecordDamaged as error:  # the run is made of rows only: other files of it are missing
        said = error.found.splitlines()
    assert not any(EVALUATIONS in line for line in said)


@pytest.mark.parametrize("what", ["renamed", "no table", "no manifest", "another table"])
def test_whatever_is_wrong_with_it_is_no_result(run: RunDirectory, what: str) -> None:
    path, _ = keep(run, True, False)
    other, _ = keep(run, True, True)
    if what == "renamed":
        path.rename(path.with_name("0002-0123456789ab"))
    elif what == "no table":
        (path / "evaluations.parquet").unlink()
    elif what == "no manifest":
        (path / "manifest.json").unlink()
    else:
        (path / "evaluations.parquet").write_bytes((other / "evaluations.parquet").read_bytes())
    assert [each.path for each in usable(run)] == [other]
    assert sum(isinstance(each, RecordDamaged) for each in kept_evaluations(run)) == 1


def test_one_that_was_played_with_a_stage_that_was_redone_is_named(run: RunDirectory) -> None:
    path, _ = keep_evaluation(run, 2, rows(True), {"0001/update_actor": "0" * 64}, SETTINGS)
    [error] = kept_evaluations(run)
    assert isinstance(error, RecordDamaged) and "another 0001/update_actor" in error.found
    assert path.name in error.found and "crl evaluate" in (error.next_step or "")
    keep_evaluation(run, 2, rows(False), {"0009/update_actor": "0" * 64}, SETTINGS)
    assert any(isinstance(each, RecordDamaged) and "no such stage" in each.found for each in kept_evaluations(run))


def test_what_is_no_evaluation_is_left_alone(run: RunDirectory) -> None:
    keep(run, True)
    for name in (".tmp-0002-aaaaaaaaaaaa-1-0", "notes", "0002-short"):
        (run.path / EVALUATIONS / name).mkdir()
    assert len(list(kept_evaluations(run))) == 1


def test_what_a_killed_command_left_is_swept(run: RunDirectory) -> None:
    keep(run, True)
    left = run.path / EVALUATIONS / f".tmp-0002-x-{machine_digest()}-{2**22 + 1}-0"  # no process has this id
    left.mkdir()
    assert left in sweep(run.path, 1) and not left.exists() and usable(run)


def test_a_run_that_cannot_be_written_is_said_and_nothing_is_left(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, content: bytes) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(RunDirectoryUnusable, match="Read-only"):
        keep(run, True)
    assert not (run.path / EVALUATIONS).exists()


def test_the_manifest_says_who_and_when_beside_its_digest(run: RunDirectory) -> None:
    path, _ = keep(run, True)
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    assert {"evaluated", "host", "settings"} <= manifest["provenance"].keys()
    assert manifest["digested"]["method"] == run.method_digest and path.name.endswith(manifest["digest"][:12])
