"""What is gone at the end of a run, or was read by nobody, is named from the journal; what redo and retention take away
is no loss; which of two manifests that disagree is the wrong one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from crl.audit.redo import set_aside
from crl.audit.remarks import remarks
from crl.audit.verify import Problem, Severity, record_of, require_intact, verify
from crl.errors import RecordDamaged
from crl.run.directory import RunDirectory
from crl.run.journal import JOURNAL, Journal
from crl.run.lease import Lease
from crl.run.manifest import MANIFEST, Manifest, key_of
from crl.run.retention import prune
from tests.unit.run.support import digests, finished_run, resume, stages_of, write_stage

ROUNDS = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Three rounds; nobody reads the last stage of the middle one's `spare`."""
    run = finished_run(tmp_path_factory.mktemp("end"), rounds=2)
    with Lease.acquire(run.path, seconds=30) as lease:
        _spare(run, 2, lease.token)
        resume(run, ROUNDS, lease.token)
        _spare(run, ROUNDS, lease.token)
    return run


def _spare(run: RunDirectory, number: int, token: int) -> None:
    """A stage that no stage reads."""
    Journal(run.path).record("stage_started", token=token, round_number=number, stage="spare")
    done = write_stage(run, number, "spare", [(number, "collect")], token)
    Journal(run.path).record("stage_committed", token=token, round_number=number, stage="spare", digest=done.digest)


@pytest.fixture
def run(whole: RunDirectory, tmp_path: Path) -> RunDirectory:
    shutil.copytree(whole.path, tmp_path / "small", copy_function=shutil.copy2)
    return RunDirectory.open(tmp_path / "small")


def _lost(run: RunDirectory) -> list[tuple[str, str]]:
    problems = verify(run.path)
    assert {problem.severity for problem in problems} <= {Severity.lost}
    require_intact(run.path)  # resuming is what mends it
    return [(problem.file, problem.mend) for problem in problems]


def test_a_stage_that_nobody_read_is_named_at_the_end_and_in_the_middle(run: RunDirectory) -> None:
    assert verify(run.path) == [] and remarks(record_of(run.path)) == []
    digest = run.manifest(2, "spare").digest
    for number in (2, ROUNDS):
        shutil.rmtree(run.stage_path(number, "spare"))
    again = f"crl resume {run.path}"
    assert _lost(run) == [("rounds/0002/spare", again), ("rounds/0003/spare", again)]
    assert digest in verify(run.path)[0].expected
    with Lease.acquire(run.path, seconds=30) as lease:
        for number in (2, ROUNDS):
            _spare(run, number, lease.token)
    assert verify(run.path) == [] and run.manifest(2, "spare").digest == digest


def test_a_lost_tail_is_named_round_by_round_and_resuming_brings_it_back(run: RunDirectory) -> None:
    before = digests(run)
    for number in (2, ROUNDS):
        shutil.rmtree(run.path / "rounds" / f"{number:04d}")
    assert [file for file, _ in _lost(run)] == ["rounds/0002", "rounds/0003"]
    problem = verify(run.path)[0]
    assert all(stage in problem.expected for stage in ("plan", "collect", "update_actor", "spare"))
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, ROUNDS, lease.token)
        for number in (2, ROUNDS):
            _spare(run, number, lease.token)
    assert verify(run.path) == [] and digests(run) == before


def test_everything_lost_is_named(run: RunDirectory) -> None:
    shutil.rmtree(run.path / "rounds")
    assert [file for file, _ in _lost(run)] == ["rounds/0001", "rounds/0002", "rounds/0003"]


def test_a_lost_round_that_needs_a_pruned_checkpoint_is_taken_back_further(run: RunDirectory) -> None:
    with Lease.acquire(run.path, seconds=30) as lease:
        prune(run.path, {"actor": "update_actor"}, 1, 0, token=lease.token)
    assert verify(run.path) == [], "what retention deleted is no loss"
    shutil.rmtree(run.path / "rounds" / "0003")
    assert _lost(run) == [("rounds/0003", f"crl redo {run.path} --from 0003/plan")]
    with Lease.acquire(run.path, seconds=30) as lease:
        moved = set_aside(run.path, ROUNDS, "plan", stages_of, token=lease.token)
        assert moved[0] == (1, "update_actor") or moved[0] == (2, "update_actor")
        assert verify(run.path) == [], "what redo took back is no loss, and neither is what was gone already"
        resume(run, ROUNDS, lease.token)
    assert verify(run.path) == []


def test_what_redo_set_aside_is_no_loss_also_where_it_was_killed(run: RunDirectory) -> None:
    before = (run.path / JOURNAL).read_bytes()
    with Lease.acquire(run.path, seconds=30) as lease:
        set_aside(run.path, 2, "collect", stages_of, token=lease.token)
    assert verify(run.path) == []
    (run.path / JOURNAL).write_bytes(before)  # killed before its line
    assert verify(run.path) == []
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, 2, lease.token)
    shutil.rmtree(run.stage_path(2, "update_actor"))
    assert _lost(run)[0][0] == "rounds/0002/update_actor", "the copy of an earlier making excuses nothing"


def test_taking_back_a_stage_that_is_gone_is_told_in_the_journal(run: RunDirectory) -> None:
    shutil.rmtree(run.path / "rounds" / "0003")
    with Lease.acquire(run.path, seconds=30) as lease:
        assert set_aside(run.path, ROUNDS, "plan", stages_of, token=lease.token) == []
    assert verify(run.path) == []


def test_one_damaged_line_of_the_journal_names_nothing(run: RunDirectory) -> None:
    """A stage counts as committed only where it was also started."""
    path = run.path / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        path.write_bytes(b"".join([*lines[:number], line.replace(b'"plan"', b'"plqn"'), *lines[number + 1 :]]))
        assert verify(run.path) == []


def test_a_missing_journal_is_noted_and_fails_nothing(run: RunDirectory) -> None:
    (run.path / JOURNAL).unlink()
    shutil.rmtree(run.stage_path(ROUNDS, "spare"))
    assert verify(run.path) == []
    (note,) = remarks(record_of(run.path))
    assert note.startswith("journal.jsonl is missing")


def test_two_swapped_files_beside_the_record_are_both_noted(run: RunDirectory) -> None:
    with Lease.acquire(run.path, seconds=30) as lease:
        prune(run.path, {"actor": "update_actor"}, 1, 0, token=lease.token)
    journal, listed = run.path / JOURNAL, run.path / "pruned.jsonl"
    texts = journal.read_bytes(), listed.read_bytes()
    journal.write_bytes(texts[1])
    listed.write_bytes(texts[0])
    assert [note.split()[0] for note in remarks(record_of(run.path))] == ["journal.jsonl", "pruned.jsonl"]
    assert verify(run.path) == []


def test_what_nobody_names_is_noted(run: RunDirectory) -> None:
    for name in ("1x", "001", "00001"):
        (run.path / "rounds" / name / "plan").mkdir(parents=True)
    for store in ("segments", "embeddings"):
        (run.path / "bank" / store).mkdir(parents=True, exist_ok=True)
        (run.path / "bank" / store / "stray.parquet").write_bytes(b"?")
    (run.path / "decisions").mkdir()
    for name in ("bank/stray.txt", "decisions/1.json"):
        (run.path / name).write_bytes(b"?")
    assert verify(run.path) == []
    assert [note.split()[0] for note in remarks(record_of(run.path))] == [
        "rounds/00001", "rounds/001", "rounds/1x", "decisions/1.json",
        "bank/embeddings/stray.parquet", "bank/segments/stray.parquet", "bank/stray.txt",
    ]  # fmt: skip
    assert run.rounds() == [1, 2, 3]


def test_a_name_with_a_newline_looks_like_no_line_of_ours(run: RunDirectory) -> None:
    for name in ("bank/a\nb", "rounds/0001/plan/c\nd"):
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_bytes(b"?")
    assert [note.split()[0] for note in remarks(record_of(run.path))] == ["bank/a\\nb"]
    (problem,) = verify(run.path)
    assert str(problem).startswith("rounds/0001/plan/c\\nd\n  expected")


def test_a_stage_that_is_a_link_is_damage(run: RunDirectory, tmp_path: Path) -> None:
    stage = run.stage_path(2, "collect")
    stage.rename(tmp_path / "elsewhere")
    stage.symlink_to(tmp_path / "elsewhere")
    (problem,) = verify(run.path)
    assert (problem.file, problem.severity) == ("rounds/0002/collect", Severity.damaged)
    assert problem.found == f"a link to {tmp_path / 'elsewhere'}"
    with pytest.raises(RecordDamaged):
        require_intact(run.path)
    with Lease.acquire(run.path, seconds=30) as lease:
        set_aside(run.path, 2, "collect", stages_of, token=lease.token)
    assert verify(run.path) == [] and (tmp_path / "elsewhere" / MANIFEST).is_file()


def _reseal(run: RunDirectory, number: int, stage: str, **changed: object) -> Manifest:
    """A manifest that is whole and another one."""
    directory = run.stage_path(number, stage)
    manifest = Manifest.load(directory)
    forged = Manifest.seal(manifest.digested.model_copy(update=changed), manifest.provenance)
    (directory / MANIFEST).write_bytes(forged.render())
    return forged


def _older(run: RunDirectory, number: int, stage: str) -> None:
    """The manifest of an earlier making: other inputs, other files."""
    digested = run.manifest(number, stage).digested
    inputs = dict.fromkeys(digested.inputs, "1" * 64)
    files = {name: file.model_copy(update={"sha256": "2" * 64}) for name, file in digested.files.items()}
    _reseal(run, number, stage, inputs=inputs, files=files)


@pytest.mark.parametrize("journal", [True, False], ids=["journal", "none"])
@pytest.mark.parametrize(
    "place", [(2, "plan"), (2, "collect"), (3, "collect"), (2, "update_actor"), (3, "spare"), (3, "update_actor")]
)
def test_an_older_manifest_is_named_itself_and_not_its_neighbor(
    run: RunDirectory, place: tuple[int, str], journal: bool
) -> None:
    if not journal:
        (run.path / JOURNAL).unlink()
    _older(run, *place)
    (problem,) = verify(run.path)
    assert problem.file == f"rounds/{key_of(*place)}/{MANIFEST}"
    assert problem.mend == f"crl redo {run.path} --from {key_of(*place)}"


def test_swapped_manifests_are_both_named(run: RunDirectory) -> None:
    first, second = (run.stage_path(number, "plan") / MANIFEST for number in (1, 2))
    texts = first.read_bytes(), second.read_bytes()
    first.write_bytes(texts[1])
    second.write_bytes(texts[0])
    problems = verify(run.path)
    assert [problem.file for problem in problems] == [f"rounds/000{number}/plan/{MANIFEST}" for number in (1, 2)]
    assert [problem.found for problem in problems] == ["that of 0002/plan", "that of 0001/plan"]


def test_a_forged_last_stage_is_noted_where_the_journal_says_otherwise(run: RunDirectory) -> None:
    assert remarks(record_of(run.path)) == []
    forged = _reseal(run, ROUNDS, "spare", seed=7)
    assert _files(verify(run.path)) == [] and forged.digest in remarks(record_of(run.path))[0]


def _files(problems: list[Problem]) -> list[str]:
    return [problem.file for problem in problems]


def test_an_attempt_that_was_killed_before_its_line_is_no_loss(run: RunDirectory) -> None:
    """Committed and not told, and told as started and not committed."""
    lines = (run.path / JOURNAL).read_text().splitlines()
    kept = [line for line in lines if json.loads(line).get("event") != "stage_committed"]
    (run.path / JOURNAL).write_text("\n".join(kept) + "\n")
    assert verify(run.path) == []
    (note,) = remarks(record_of(run.path))
    assert note.startswith(f"{JOURNAL}: it was c"), "that lines were taken out of it is all there is to say"
    shutil.rmtree(run.stage_path(ROUNDS, "spare"))
    assert verify(run.path) == []
