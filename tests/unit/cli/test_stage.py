"""`crl stage`: one stage of a run made again in this process, and how it differs from what is recorded."""

from __future__ import annotations

import bdb
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from crl.cli import main
from crl.config import Method
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.records import EntryScore, Metric
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from crl.run.files import sha256_file
from crl.run.lease import Lease
from tests.unit.cli.conftest import Outcome
from tests.unit.engine import fake_recipe
from tests.unit.engine.harness import make_experiment

Crl = Callable[..., Outcome]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Round 0, and of round 1 the stages before `total`."""
    run = RunDirectory.create_or_open(make_experiment(), tmp_path / "runs")
    with Lease.acquire(run.path, seconds=60) as lease:
        for number, name in [(0, "prepare"), (1, "draw"), (1, "spread"), (1, "learn")]:
            attempt = Attempt(token=lease.token)
            execute_stage(run, recipe_in(run), number, name, attempt=attempt, services=EngineServices(run))
    return run.path


@pytest.fixture(autouse=True)
def untouched(path: Path) -> object:
    """Whatever a test does, no file of the run comes, goes or changes."""

    def files() -> dict[Path, str]:
        return {file: sha256_file(file) for file in path.rglob("*") if file.is_file()}

    before = files()
    yield
    assert files() == before


def test_a_stage_made_again_is_the_one_of_the_record(path: Path, crl: Crl) -> None:
    made = crl("stage", path, "1", "spread", "--rows", "2")  # all of its parts, in this process
    assert made.code == 0 and "spread of round 1" in made.out
    assert "metrics: 20 rows, equal" in made.out and "differs" not in made.out
    made = crl("stage", path, "1", "learn")  # a file of its own
    assert "metrics: 1 rows, equal" in made.out and "rank0.txt: 6 bytes, equal" in made.out
    assert "  loss 20\n" in made.out, "metrics are told"


def test_what_differs_is_told_by_key_and_column(path: Path, crl: Crl, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = fake_recipe.metric
    renamed = {"p0-d1": "p0-dx"}

    def changed(ctx: object, name: str, value: float) -> Metric:
        return metric(ctx, renamed.get(name, name), 7.5 if name == "p2-d0" else value)  # type: ignore[arg-type]

    monkeypatch.setattr(fake_recipe, "metric", changed)
    made = crl("stage", path, "1", "spread")
    assert made.code == 0 and "metrics: 20 rows, differs" in made.out
    lines = [line.strip() for line in made.out.splitlines()]
    assert any(line.startswith("stage spread, name p2-d0: value: 7.5 | ") for line in lines)
    assert "stage spread, name p0-dx: only in what was made" in lines
    assert "stage spread, name p0-d1: only in the record" in lines


def test_tables_and_files_that_come_or_go_are_told(path: Path, crl: Crl, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(ctx: Any) -> None:
        (ctx.directory / "other.txt").write_text("other")
        ctx.write(EntryScore, [])

    build = fake_recipe.build

    def changed(method: Method) -> Recipe:
        recipe = build(method)
        stages = [replace(each, run=other) if each.name == "learn" else each for each in recipe.stages]
        return replace(recipe, stages=tuple(stages))

    monkeypatch.setattr(fake_recipe, "build", changed)
    made = crl("stage", path, "1", "learn").out
    assert "entry_scores: 0 rows, not in the record" in made and "other.txt: 5 bytes, not in the record" in made
    assert "metrics.parquet: only in the record" in made and "rank0.txt: only in the record" in made


def test_the_next_stage_is_made_before_it_is_recorded_and_written_where_it_is_told(path: Path, crl: Crl) -> None:
    into = path.parents[1] / "there"
    made = crl("stage", path, "1", "total", "--into", into)
    assert made.code == 0 and "not recorded" in made.out and "metrics: 1 rows\n" in made.out
    assert pq.read_table(into / "metrics.parquet")["name"].to_pylist() == ["total"]
    assert crl("stage", path, "1", "total", "--into", into).code == 2, "it is not empty any more"
    assert crl("stage", path, "1", "total", "--into", path / "there").code == 2, "the record is no place for it"
    assert crl("stage", path, "1", "total", "--into", into / "metrics.parquet" / "there").code == 2, "below a file"
    recorded = path / "rounds" / "0001" / "draw"
    crl("stage", path, "1", "draw", "--into", into / "draw")
    for name in ("metrics.parquet", "half.txt"):
        assert (into / "draw" / name).read_bytes() == (recorded / name).read_bytes()


@pytest.mark.slow  # it imports Great Expectations
def test_rows_that_a_data_check_refuses_are_told(path: Path, crl: Crl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_FAKE", '{"draw": ["duplicates", ""]}')
    assert "a data check fails: table metrics" in crl("stage", path, "1", "draw").out


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (("7", "draw"), "has no round 7"),
        (("1", "dream"), "has no stage 'dream' in round 1"),
        (("0", "draw"), "has no stage 'draw' in round 0"),
        (("2", "spread"), "reads 0002/draw, which the record does not have"),
    ],
)
def test_what_cannot_run_is_refused(place: tuple[str, str], found: str, path: Path, crl: Crl) -> None:
    made = crl("stage", path, *place)
    assert made.code == 2 and found in made.err


def test_a_run_that_is_not_there_is_refused(path: Path, crl: Crl) -> None:
    assert crl("stage", path.parent / "nobody", "1", "draw").code == 2


def test_what_a_stage_raises_reaches_the_debugger(path: Path, crl: Crl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_FAKE", '{"draw": ["raise", ""]}')
    made = crl("stage", path, "1", "draw")
    assert made.code == 1 and "Traceback" in made.err
    with pytest.raises(Exception, match=r".") as raised:
        bdb.Bdb().runcall(main, ["stage", str(path), "1", "draw"])
    assert raised.traceback[-1].path.name == "fake_recipe.py"


@pytest.mark.slow
def test_every_stage_of_a_real_round_is_made_again_as_it_was(unpruned: Path, tmp_path: Path, crl: Crl) -> None:
    """Models are loaded, environments played, weights trained in this process."""
    path = shutil.copytree(unpruned, tmp_path / "real")
    before = {file: sha256_file(file) for file in path.rglob("*") if file.is_file()}
    for number in (0, 2):
        for name in RunDirectory.open(path).complete_stages(number):
            made = crl("stage", path, str(number), name)
            assert made.code == 0 and ", equal" in made.out and "differs" not in made.out, (name, made.out, made.err)
    assert {file: sha256_file(file) for file in path.rglob("*") if file.is_file()} == before
