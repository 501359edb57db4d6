"""Corrupt, truncate or delete any file of the bank's store: every reader names it, and `crl mend` puts it back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import bank_problems, problems_of
from crl.audit.mend import Mending, mend
from crl.audit.verify import Problem, Severity, require_intact
from crl.bank.segments import EMBEDDINGS, SEGMENTS
from crl.engine.services import EngineServices
from crl.errors import RecordDamaged
from crl.records import BankChange, BankEntry, schema_of
from crl.report.bank import BankAfter
from crl.report.diff import BankDiff, bank_diff
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from crl.run.files import sha256_bytes
from crl.run.lease import Lease
from crl.run.manifest import MANIFEST, FileDigest, Manifest
from crl.run.writer import parquet_bytes
from tests.marks import sampled
from tests.tiny_run import ROUNDS, crl_here
from tests.unit.report.scripted import Ask, ScriptedRun, Services

Damage = Callable[[Path], None]


def _corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _delete(path: Path) -> None:
    path.unlink()


DAMAGES: tuple[Damage, ...] = (_corrupt, _truncate, _delete)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven rounds in which entries come, change, merge and go; a base in the middle, made without any model."""
    with ScriptedRun(tmp_path_factory.mktemp("store")) as run:
        run.initialize()
        first, second, third = run.play(*(Ask("add", f"advice number {number}") for number in range(3)))
        run.play(Ask("add", "look for the key first"), guided=[(first, True)])
        run.play(Ask("update", "look for the key behind the door", entry=first), Ask("drop", entry=third))
        run.play(merges=[Ask("merge", "two pieces of advice in one", parents=(first, second))])
        run.play(Ask("add", "advice number 2"), Ask("return"))
        run.play(Ask("add", "never step on ice"), Ask("add", "advice number 0"))
    return run.path


@pytest.fixture
def victim(scripted: Path, tmp_path: Path) -> RunDirectory:
    shutil.copytree(scripted, tmp_path / scripted.name)
    return RunDirectory.open(tmp_path / scripted.name)


def _store(run: RunDirectory) -> list[str]:
    """Every file of the bank's store, and the manifests of the stages that publish it."""
    recipe = recipe_of(run.method)
    published = [run.stage_path(0, "initialize"), *(run.stage_path(n, "consolidate") for n in run.rounds() if n)]
    paths = [path for stage in published for path in stage.iterdir() if path.name.startswith(("bank", MANIFEST))]
    paths += [path for folder in (SEGMENTS, EMBEDDINGS) for path in (run.path / folder).iterdir()]
    assert recipe.from_rows(run.method, 1, "consolidate") and not recipe.from_rows(run.method, 1, "distill")
    return sorted(path.relative_to(run.path).as_posix() for path in paths)


def _bank(run: RunDirectory, number: int) -> str:
    return recorded_bank(run, recipe_of(run.method), number).digest()


def _texts(run: RunDirectory, number: int) -> list[str]:
    return BankAfter(run, number).texts(BankAfter(run, number).rows())


def _vectors(run: RunDirectory, number: int) -> list[list[float]]:
    found: list[list[float]] = BankAfter(run, number).embeddings(BankAfter(run, number).rows()).tolist()
    return found


def _changes(run: RunDirectory, number: int) -> BankDiff:
    return bank_diff(run.path, number)


READERS: tuple[Callable[[RunDirectory, int], Any], ...] = (_bank, _texts, _vectors, _changes)
Read = dict[tuple[str, int], Any]
"""What each reader made of each round; the error where it could not read it."""


def _read(run: RunDirectory) -> Read:
    found: Read = {}
    for reader in READERS:
        for number in run.rounds():
            try:
                found[reader.__name__, number] = reader(run, number)
            except RecordDamaged as error:
                found[reader.__name__, number] = error
    return found


def _mended(run: RunDirectory) -> Mending:
    services: Any = Services() if run.experiment_name == "scripted" else EngineServices(run)
    with Lease.acquire(run.path, seconds=60) as lease:
        return mend(run, recipe_of(run.method), services, token=lease.token)


def _damaged(run: RunDirectory) -> list[Problem]:
    return [each for each in problems_of(run, recipe_of(run.method)) if each.severity is Severity.damaged]


def _is_read(run: RunDirectory, stage: Path) -> bool:
    """Whether another stage recorded the digest of this one."""
    key = stage.relative_to(run.path / "rounds").as_posix()
    others = [path for path in (run.path / "rounds").glob("*/*") if path != stage]
    return any(key in Manifest.load(other).digested.inputs for other in others)


def _try(run: RunDirectory, name: str, damage: Damage, truth: Read) -> None:
    path = run.path / name
    before = path.read_bytes()
    damage(path)
    after = path.read_bytes() if path.exists() else None
    (problem,) = _damaged(run)
    assert (problem.file, problem.mend) == (name, f"crl mend {run.path}")
    read = _read(run)
    damaged = {place: error for place, error in read.items() if isinstance(error, RecordDamaged)}
    spared = path.name == "bank_changes.parquet" and (path.parent / "bank.parquet").exists()
    assert bool(damaged) is not spared, "no reader goes on without a word: the changes that a base holds no one reads"
    for error in damaged.values():
        assert name in f"{error.found} {error.where}" and f"`crl mend {run.path}`" in (error.next_step or "")
    assert {place: truth[place] for place in read.keys() - damaged} == {
        place: read[place] for place in read.keys() - damaged
    }, "who does not need the file reads what was there"
    assert (path.read_bytes() if path.exists() else None) == after, "reading repairs nothing"
    if path.name == MANIFEST and not _is_read(run, path.parent):  # nothing proves what would take its place
        assert [(each.file, error.exit_code) for each, error in _mended(run).left] == [(name, 4)]
        path.write_bytes(before)
        return
    done = _mended(run)
    assert (done.mended, done.left) == ([name], [])
    assert _damaged(run) == []
    if path.name == MANIFEST:
        assert Manifest.load(path.parent).digest == Manifest.model_validate_json(before).digest
        path.write_bytes(before)
    assert path.read_bytes() == before
    kept = run.path / done.kept[0] / name if done.kept else None
    assert (kept is None) == (after is None) and (kept is None or kept.read_bytes() == after), "nothing is deleted"


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=["corrupt", "truncate", "delete"])
def test_any_file_of_the_store_is_named_by_its_readers_and_mended(victim: RunDirectory, damage: Damage) -> None:
    names, truth = _store(victim), _read(victim)
    assert sum(name.endswith("/bank.parquet") for name in names) >= 2, "a base lies in the middle"
    assert len(names) >= 40
    for name in names:
        _try(victim, name, damage, truth)


@pytest.mark.slow
def test_any_file_of_a_trained_store_is_named_by_its_readers_and_mended(copied: Path) -> None:
    run = RunDirectory.open(copied)
    names, truth = _store(run), _read(run)
    assert run.rounds() == list(range(ROUNDS + 1)) and len(truth["_texts", ROUNDS]) > len(truth["_texts", 0])
    for number, name in enumerate(names):
        _try(run, name, DAMAGES[number % 3], truth)


@pytest.mark.parametrize("with_texts", sampled([False, True], 2))
def test_a_whole_stage_that_is_gone_is_put_back(victim: RunDirectory, with_texts: bool) -> None:
    stage, truth = victim.stage_path(2, "consolidate"), _read(victim)
    whole = victim.manifest(2, "consolidate")
    before = {path.name: path.read_bytes() for path in stage.iterdir()}
    lost = [victim.path / name for name in whole.digested.shared]
    assert len(lost) == 2, "the round wrote texts and vectors"
    vectors = [path.read_bytes() for path in lost]
    shutil.rmtree(stage)
    for path in lost if with_texts else []:
        _delete(path)
    (problem,) = _damaged(victim)  # no later round is named for it
    assert (problem.file, problem.mend) == ("rounds/0002/consolidate", f"crl mend {victim.path}")
    with pytest.raises(RecordDamaged, match="manifest"):
        _bank(victim, 2)
    done = _mended(victim)
    assert (done.mended, done.left, done.kept) == ([problem.file], [], [])
    assert _damaged(victim) == [] and _read(victim) == truth
    assert [path.read_bytes() for path in lost] == vectors
    after = {path.name: path.read_bytes() for path in stage.iterdir()}
    assert after.pop(MANIFEST) != before.pop(MANIFEST) and after == before
    again = victim.manifest(2, "consolidate")
    assert again.digest == whole.digest and again.provenance["sequence"] == whole.provenance["sequence"]
    assert not list(stage.parent.glob(".*")), "nothing half written is left"


def test_a_round_that_is_gone_is_not_blamed_on_the_bank_of_the_next(victim: RunDirectory) -> None:
    shutil.rmtree(victim.path / "rounds/0003")
    named = _damaged(victim)
    assert named and all(problem.file.startswith("rounds/0003/") for problem in named)


def test_a_whole_stage_that_nothing_proves_is_left(victim: RunDirectory) -> None:
    """A round whose operations are gone as well."""
    for stage in ("consolidate", "distill"):
        shutil.rmtree(victim.stage_path(3, stage))
    done = _mended(victim)
    assert [problem.file for problem, _ in done.left] == ["rounds/0003/distill", "rounds/0003/consolidate"]
    assert not victim.stage_path(3, "consolidate").exists() and done.mended == []


def test_the_whole_store_is_made_again_at_once(victim: RunDirectory) -> None:
    before = {name: (victim.path / name).read_bytes() for name in _store(victim) if not name.endswith(MANIFEST)}
    for number, name in enumerate(before):
        DAMAGES[number % 3](victim.path / name)
    done = _mended(victim)
    assert sorted(done.mended) == sorted(before) and done.left == []
    assert {name: (victim.path / name).read_bytes() for name in before} == before
    require_intact(victim.path)


def test_what_does_not_follow_is_left_with_the_command_that_takes_it_back(victim: RunDirectory) -> None:
    lost = ["rounds/0002/distill/operations.parquet", "rounds/0002/consolidate/bank_changes.parquet"]
    for name in lost:
        _corrupt(victim.path / name)
    held = {name: (victim.path / name).read_bytes() for name in lost}
    done = _mended(victim)
    assert [problem.file for problem, _ in done.left] == lost and done.mended == []
    redo = f"crl redo {victim.path} --from 0002"
    assert [problem.redo for problem, _ in done.left] == [f"{redo}/distill", f"{redo}/consolidate"]
    assert {name: (victim.path / name).read_bytes() for name in lost} == held
    with pytest.raises(RecordDamaged):
        recorded_bank(victim, recipe_of(victim.method), 2)
    assert [len(recorded_bank(victim, recipe_of(victim.method), number)) for number in (1, 3)] == [3, 3]


def test_stages_do_not_build_on_damage(victim: RunDirectory) -> None:
    _corrupt(victim.path / "rounds/0002/consolidate/bank_changes.parquet")
    with pytest.raises(RecordDamaged) as raised:
        require_intact(victim.path, from_rows=partial(recipe_of(victim.method).from_rows, victim.method))
    assert raised.value.next_step == f"crl mend {victim.path}"


def _forged(run: RunDirectory, number: int, row_type: type) -> None:
    """A table without its last row, under a manifest that vouches for it: files and manifest are whole."""
    stage = run.stage_path(number, "consolidate")
    table = run.read(number, "consolidate", row_type)
    shorter = table.slice(0, table.num_rows - 1).cast(schema_of(row_type))
    content, name = parquet_bytes(row_type, shorter), f"{row_type.table}.parquet"
    (stage / name).write_bytes(content)
    old = run.manifest(number, "consolidate")
    digest = FileDigest(sha256=sha256_bytes(content), bytes=len(content), rows=shorter.num_rows)
    digested = old.digested.model_copy(update={"files": {**old.digested.files, name: digest}})
    (stage / MANIFEST).write_bytes(Manifest.seal(digested, old.provenance).render())


@pytest.mark.parametrize(
    ("number", "row_type", "file"), [(2, BankChange, "bank_snapshots.parquet"), (None, BankEntry, "bank.parquet")]
)
def test_a_bank_that_is_not_the_recorded_one_is_named(
    victim: RunDirectory, number: int | None, row_type: type, file: str
) -> None:
    recipe = recipe_of(victim.method)
    assert bank_problems(victim, recipe) == []
    base = next(n for n in victim.rounds() if n and (victim.stage_path(n, "consolidate") / "bank.parquet").exists())
    _forged(victim, number or base, row_type)
    first = bank_problems(victim, recipe)[0]
    assert first.file == f"rounds/{number or base:04d}/consolidate/{file}"
    assert first.mend == f"crl redo {victim.path} --from {number or base:04d}/consolidate"


@pytest.mark.slow
def test_the_commands_verify_and_mend(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str, code: int = 0) -> str:
        from crl.cli import main

        with pytest.raises(SystemExit) as ended:
            main([*words])
        assert (ended.value.code or 0) == code
        return capsys.readouterr().out

    (segment, *_) = (copied / SEGMENTS).iterdir()
    lost = [segment, copied / "rounds/0001/consolidate/bank_changes.parquet", copied / "catalog.duckdb"]
    for path in lost:
        _delete(path)
    told = run("verify", str(copied), code=4)
    assert f"mend     crl mend {copied}" in told and all(path.name in told for path in lost)
    newest, exported = str(ROUNDS), str(copied.parent / "exported")
    for command in (
        ["bank", "show", "tiny", "--round", newest], ["bank", "export", "tiny", "--to", exported],
        ["bank", "diff", "tiny", newest], ["sql", "tiny", "SELECT count(*) FROM bank"],
    ):  # fmt: skip
        said = crl_here(copied.parent, *command, code=4).stderr
        assert f"crl mend {copied}" in said and any(path.name in said for path in lost), said
    crl_here(copied.parent, "mend", "tiny", "--yes")
    assert "is intact" in run("verify", str(copied))
    assert "nothing to mend" in run("mend", str(copied))


@pytest.fixture(autouse=True)
def _plain_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`mend` sets variables for the process that embeds; they are taken back."""
    import os

    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        monkeypatch.delenv(name)
