"""The right file is named: of two swapped ones both, of an older one put back that one; links, and what is no stage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from crl.audit.remarks import remarks
from crl.audit.verify import Severity, problems_in, record_of, verify
from crl.config.models import WAYS
from crl.errors import RecordDamaged
from crl.records import Metric
from crl.report.summary import summarize
from crl.run import cache
from crl.run.directory import RunDirectory
from crl.run.files import sha256_bytes
from crl.run.journal import JOURNAL
from crl.run.lease import LEASE, Lease
from crl.run.manifest import MANIFEST, Manifest, key_of
from crl.run.retention import prune
from crl.trackers.subscriber import LEDGER
from tests.unit.run.support import finished_run, resume

CATALOG = "catalog.duckdb"


def _catalog(run: RunDirectory, content: bytes) -> None:
    (run.path / CATALOG).write_bytes(b"\0" * 8 + b"DUCK" + content)
    cache.seal(run.path, CATALOG, run.path / CATALOG)


def _index(run: RunDirectory, key: str) -> None:
    cache.cached(run.path, key, lambda place: (place / "codes").write_bytes(key.encode()) and None)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """As the run was after its second round."""
    run = finished_run(tmp_path_factory.mktemp("older"), rounds=2)
    _catalog(run, b"older")
    return run


@pytest.fixture(scope="module")
def whole(older: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds, two indexes, a catalog written twice."""
    path = tmp_path_factory.mktemp("whole") / "small"
    shutil.copytree(older.path, path, copy_function=shutil.copy2)
    run = RunDirectory.open(path)
    with Lease.acquire(run.path, seconds=30) as lease:
        resume(run, 3, lease.token)
        prune(run.path, {"actor": "update_actor"}, 2, 0, token=lease.token)
    _catalog(run, b"newer")
    _index(run, "first")
    _index(run, "second")
    (run.path / LEDGER).write_text(json.dumps({"tracker": "t", "round": 1}) + "\n")
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> RunDirectory:
    shutil.copytree(whole, tmp_path / "small", copy_function=shutil.copy2)
    return RunDirectory.open(tmp_path / "small")


def _named(run: RunDirectory) -> list[str]:
    """Files of problems, then those of notes."""
    record = record_of(run.path)
    return sorted(problem.file for problem in problems_in(record)) + [note.split()[0] for note in remarks(record)]


def _swap(run: RunDirectory, *names: str) -> None:
    texts = [(run.path / name).read_bytes() for name in names]
    for name, text in zip(names, reversed(texts), strict=True):
        (run.path / name).write_bytes(text)


def test_nothing_is_named_in_a_whole_run(run: RunDirectory) -> None:
    assert _named(run) == []


@pytest.mark.parametrize(
    "name", [f"cache/seals/{CATALOG}.json", CATALOG, JOURNAL, LEASE], ids=["seal", "catalog", "journal", "lease"]
)
def test_an_older_file_put_back_is_named_itself(older: RunDirectory, run: RunDirectory, name: str) -> None:
    shutil.copy2(older.path / name, run.path / name)
    assert _named(run) == [name]
    if name != JOURNAL:
        (problem,) = verify(run.path)
        assert problem.severity in (Severity.derived, Severity.housekeeping) and problem.expected != problem.found
    if name == LEASE:
        with Lease.acquire(run.path, seconds=30) as lease:
            assert lease.token == 3
        assert _named(run) == []
    if name.startswith("cache"):
        cache.discard_damaged(run.path)
        assert (run.path / CATALOG).exists(), "the catalog is whole"
        cache.seal(run.path, CATALOG, run.path / CATALOG)
        assert _named(run) == []


def test_an_older_journal_is_seen_by_the_lease_alone(older: RunDirectory, run: RunDirectory) -> None:
    text = (run.path / JOURNAL).read_bytes()
    with Lease.acquire(run.path, seconds=30):
        pass
    (run.path / JOURNAL).write_bytes(text)
    assert _named(run) == [JOURNAL]


def test_an_attempt_that_was_killed_before_it_wrote_its_lease_is_no_problem(run: RunDirectory) -> None:
    with (run.path / JOURNAL).open("a") as file:
        file.write(json.dumps({"event": "attempt_started", "token": 7}) + "\n")
    assert _named(run) == []


def test_a_list_of_pruned_checkpoints_that_lacks_one_is_noted(run: RunDirectory) -> None:
    (run.path / "pruned.jsonl").unlink()
    assert verify(run.path) == [] and _named(run) == ["pruned.jsonl"]


def test_a_manifest_of_an_earlier_attempt_is_noted(run: RunDirectory) -> None:
    """Equal stages: only times and attempt differ."""
    directory = run.stage_path(3, "plan")
    manifest = Manifest.load(directory)
    earlier = Manifest.seal(manifest.digested, {**manifest.provenance, "token": 1})
    (directory / MANIFEST).write_bytes(earlier.render())
    assert _named(run) == [f"rounds/0003/plan/{MANIFEST}"] and verify(run.path) == []


@pytest.mark.parametrize(
    "names",
    [
        (JOURNAL, "pruned.jsonl"),
        (JOURNAL, LEDGER),
        ("pruned.jsonl", LEDGER),
        ("rounds/0003/collect/manifest.json", "rounds/0003/plan/manifest.json"),
        ("rounds/0001/update_actor/manifest.json", "rounds/0003/update_actor/manifest.json"),
        ("rounds/0001/plan/metrics.parquet", "rounds/0002/plan/metrics.parquet"),
        ("rounds/0002/update_actor/metrics.parquet", "rounds/0002/update_actor/weights.parquet"),
        ("cache/first/sums.json", "cache/second/sums.json"),
        ("cache/first/codes", "cache/second/codes"),
    ],
)
def test_two_swapped_files_are_both_named_and_nothing_else(run: RunDirectory, names: tuple[str, str]) -> None:
    _swap(run, *names)
    assert _named(run) == list(names)


def test_two_swapped_texts_of_the_bank_are_both_named(run: RunDirectory) -> None:
    names = sorted(path.relative_to(run.path).as_posix() for path in (run.path / "bank/segments").iterdir())[:2]
    _swap(run, *names)
    assert _named(run) == names


def test_any_stage_that_is_gone_and_any_two_of_the_last_are_named(run: RunDirectory) -> None:
    places = [key_of(*place) for place in record_of(run.path).stages]
    assert len(places) == 9
    for keys in [*((key,) for key in places), *combinations(places[-4:], 2)]:
        for key in keys:
            (run.path / "rounds" / key).rename(run.path / key.replace("/", "-"))
        assert {f"rounds/{key}" for key in keys} <= set(_named(run)), keys
        for key in keys:
            (run.path / key.replace("/", "-")).rename(run.path / "rounds" / key)
    assert _named(run) == []


LINKED = (
    "experiment.yaml", "rounds", "rounds/0002", "rounds/0003/update_actor/checkpoint", "rounds/0002/plan/manifest.json",
    "rounds/0002/plan/metrics.parquet", "bank", "bank/segments", "bank/segments/*",
)  # fmt: skip


@pytest.mark.parametrize("pattern", LINKED)
def test_a_link_is_named_once_and_its_command_mends_it(run: RunDirectory, tmp_path: Path, pattern: str) -> None:
    path = next(run.path.glob(pattern))
    name = path.relative_to(run.path).as_posix()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    (problem,) = verify(run.path)
    assert (problem.file, problem.found) == (name, f"a link to {tmp_path / 'elsewhere'}")
    assert problem.severity is Severity.damaged
    subprocess.run(problem.mend, shell=True, check=True)
    assert _named(run) == [] and not path.is_symlink()


@pytest.mark.parametrize("name", ["rounds/0002", "rounds/0009", "rounds/0002/plan", "bank/segments/x", "rounds/1x"])
def test_a_link_that_leads_nowhere_is_named_and_moved_away(run: RunDirectory, name: str) -> None:
    shutil.rmtree(run.path / name, ignore_errors=True)
    (run.path / name).symlink_to(run.path / "nowhere")
    (problem,) = [problem for problem in verify(run.path) if problem.file == name]
    assert problem.mend.startswith("mkdir -p") and "nowhere" in problem.found
    subprocess.run(problem.mend, shell=True, check=True)
    assert "link" not in " ".join(problem.found for problem in verify(run.path))


def test_a_file_in_the_place_of_a_round_is_named(run: RunDirectory) -> None:
    (run.path / "rounds/0004").write_text("?")
    assert _named(run) == ["rounds/0004"]


def test_a_pipe_in_the_place_of_all_rounds_is_named_and_nothing_is_read_from_it(run: RunDirectory) -> None:
    shutil.rmtree(run.path / "rounds")
    os.mkfifo(run.path / "rounds")
    assert "rounds" in [problem.file for problem in verify(run.path) if problem.severity is Severity.damaged]
    assert summarize(run.path) == []


def test_an_empty_stage_is_named_and_the_journal_is_not_blamed(run: RunDirectory) -> None:
    (run.path / "rounds/0002/other").mkdir()
    assert _named(run) == ["rounds/0002/other/manifest.json"]


@pytest.mark.parametrize("copy", ["0001/collect_copy", "0001/plan2", "0004", "0007"])
def test_a_stray_copy_is_named_and_moving_it_away_is_all_that_it_takes(run: RunDirectory, copy: str) -> None:
    source = run.path / "rounds" / ("0003" if "/" not in copy else copy.partition("_")[0].rstrip("2"))
    before = {path: path.stat().st_mtime_ns for path in (run.path / "rounds").rglob("*") if path.is_file()}
    shutil.copytree(source, run.path / "rounds" / copy)
    (problem,) = verify(run.path)
    assert (problem.file, problem.severity) == (f"rounds/{copy}", Severity.damaged) and "a copy of" in problem.found
    subprocess.run(problem.mend, shell=True, check=True)
    assert verify(run.path) == []
    assert before == {path: path.stat().st_mtime_ns for path in (run.path / "rounds").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: None, None),
        (lambda file: file.write_text('{"sampling":"pac'), "ways/actor.json is damaged"),
        (lambda file: file.write_text("{}"), "ways/actor.json is damaged"),
        (lambda file: file.write_text('{"sampling":"packed","update":"packed","x":1}'), "ways/actor.json is damaged"),
        (lambda file: file.write_text('{"sampling":"rows","update":"packed"}'), "ways/actor.json says sampling rows"),
        (lambda file: file.unlink() or os.mkfifo(file), "ways/actor.json is damaged"),
        (lambda file: file.unlink(), "ways/actor.json is missing"),
        (lambda file: file.with_name("other.json").write_text("{}"), "ways/other.json is unknown"),
    ],
)
def test_a_file_of_ways_that_was_cut_or_changed_is_noted_with_what_to_do(
    run: RunDirectory, damage: Callable[[Path], None], says: str | None
) -> None:
    manifest, file = run.manifest(3, "collect"), run.path / WAYS / "actor.json"
    noting = Manifest.seal(manifest.digested, {**manifest.provenance, WAYS: {"actor": {"sampling": "packed"}}})
    (run.stage_path(3, "collect") / MANIFEST).write_bytes(noting.render())
    file.parent.mkdir()
    file.write_text('{"sampling":"packed","update":"packed"}')
    damage(file)
    found = remarks(record_of(run.path))
    assert len(found) == (says is not None), found
    if says is not None:
        assert found[0].startswith(says), found
        assert "unknown" in says or "0003/collect was computed with sampling packed" in found[0]
        assert "unknown" in says or "chosen again when the run goes on" in found[0]


@pytest.mark.parametrize("name", ["experiment.yaml", "rounds/0002/collect/metrics.parquet", "bank/segments/*"])
def test_an_empty_file_is_told_to_be_empty(run: RunDirectory, name: str) -> None:
    file = next(run.path.glob(name))
    file.write_bytes(b"")
    told = "".join(map(str, verify(run.path)))
    assert "empty" in told and sha256_bytes(b"") not in told
    if file.name == "metrics.parquet":
        with pytest.raises(RecordDamaged, match="the file is empty"):
            run.read(2, "collect", Metric)


@pytest.mark.parametrize("content", [b"\0" * 3000, b"# sha256 of what follows: \x1b[31m" + b"0" * 64 + b"\nname: x\n"])
def test_what_stands_where_a_digest_belongs_is_not_shown(run: RunDirectory, content: bytes) -> None:
    (run.path / "experiment.yaml").write_bytes(content)
    with pytest.raises(RecordDamaged, match="its first line names no SHA-256") as refused:
        RunDirectory.open(run.path)
    assert not set("\0\x1b") & set(f"{refused.value}{refused.value.expected}{verify(run.path)[0]}")
