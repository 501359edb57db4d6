"""The Data Docs of a run: what Great Expectations found in its rows, refused ones too, as pages that load nothing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import crl.records as r
from crl.checks import suites
from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.errors import BadInput, DataCheckFailed
from crl.records import schema_of
from crl.report.data_docs import INDEX
from crl.report.page import write_report
from crl.rounds.context import StageContext
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe, Stage
from crl.run.cache import cached, faults
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.run.refused import refused
from crl.validation.round import validate_rounds
from tests.recipe_runs import requires
from tests.unit.checks import example_rows as examples

TINY = Path(__file__).parents[3] / "conf" / "tiny.yaml"
SHORT = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "turns", "max_value": 1}}
OWN = {"episodes": {"expectations": [SHORT]}}


def collect(ctx: StageContext) -> None:
    """Episodes that are sound, or claim a turn too many where the round is odd."""
    rows = examples.collect()
    if ctx.round % 2:
        rows[r.Episode][0] = dataclasses.replace(rows[r.Episode][0], turns=3, tokens_sampled=6)  # type: ignore[type-var]
    for row_type, listed in rows.items():
        ctx.write(row_type, listed)


RECIPE = Recipe(
    name="one",
    preparation=(),
    stages=(Stage("collect", run=collect, writes=(r.Episode, r.Turn, r.Generation)),),
    initial={},
)


def attempt(run: RunDirectory, number: int, recipe: Recipe = RECIPE, **more: object) -> None:
    with Lease.acquire(run.path, seconds=60) as lease:
        execute_stage(
            run, recipe, number, "collect", attempt=Attempt(token=lease.token, **more), services=None  # type: ignore[arg-type]
        )  # fmt: skip


def docs(run_path: Path, *more: object) -> str:
    """The first page of the Data Docs, made again."""
    validate_rounds(run_path, *more)  # type: ignore[arg-type]
    return (run_path / INDEX).read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create_or_open(load_experiment(TINY), tmp_path)


@pytest.mark.slow
def test_a_refused_stage_keeps_its_rows_and_the_docs_show_them(run: RunDirectory) -> None:
    attempt(run, 2)
    with pytest.raises(DataCheckFailed, match="as many turns, and as many of them invalid, as it says"):
        attempt(run, 1)
    assert not run.is_complete(1, "collect") and refused(run.path)[1, "collect"][r.Episode].num_rows == 4
    text, index = docs(run.path), run.path / INDEX
    assert faults(run.path) == []
    assert text.count("passed</a>") == 5 and text.count("failed</a>, not committed") == 1
    links = re.findall(r'href="([^"]+)"', text)
    assert "validations/rounds/0001/collect/episodes.html" in links
    for link in links:
        page = index.parent / link
        content = page.read_text(encoding="utf-8")
        assert "http" not in content.replace("http-equiv", "") and "<script" not in content
        for further in re.findall(r'href="([^"#]+)"', content):
            assert (page.parent / further).is_file(), f"{link} leads to {further}"
    broken = (index.parent / "validations/rounds/0001/collect/episodes.html").read_text(encoding="utf-8")
    assert "is broken in 1 row: row 0 (r0001-room-g0000-m0000)" in broken


@pytest.mark.slow
def test_values_of_rows_are_text_in_the_docs(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "\x1b[2J\u202e<img src=x onerror='y'></script><script>z</script>$column"

    def spoiled() -> dict[type[r.Row], list[r.Row]]:
        rows = sound()
        rows[r.Episode] = [dataclasses.replace(row, goal=hostile) for row in rows[r.Episode]]  # type: ignore[type-var]
        return rows

    sound = examples.collect
    monkeypatch.setattr(examples, "collect", spoiled)
    attempt(run, 2)
    goals = {"type": "expect_column_distinct_values_to_be_in_set", "kwargs": {"column": "goal", "value_set": ["a"]}}
    docs(run.path, [2], {"episodes": {"expectations": [goals]}})
    page = (run.path / INDEX).parent / "validations/rounds/0002/collect/episodes.html"
    text = page.read_text(encoding="utf-8")
    assert "&lt;img src=x" in text and "<img" not in text and "<script" not in text
    assert "\x1b" not in text and "\u202e" not in text and r"\x1b[2J\u202e" in text


def test_what_was_refused_is_forgotten_once_the_stage_is_committed(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataCheckFailed):
        attempt(run, 2, expectations=OWN)
    assert set(refused(run.path)) == {(2, "collect")}
    attempt(run, 2)
    assert refused(run.path) == {}


@pytest.mark.slow
@requires("erl")
def test_tables_that_a_recipe_brings_are_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crl.recipes.erl.rows import Reflection

    run = RunDirectory.create_or_open(load_experiment(TINY.with_name("erl_tiny.yaml")), tmp_path)
    recipe_in(run)
    stage = Stage("collect", run=lambda ctx: ctx.write(Reflection, []), writes=(Reflection,))
    attempt(run, 1, dataclasses.replace(RECIPE, stages=(stage,)))

    def write(directory: Path) -> None:
        for name in ("reflections", "nobodys"):
            pq.write_table(schema_of(Reflection).empty_table(), directory / f"{name}.parquet")

    cached(run.path, "refused-0002-reflect", write)
    monkeypatch.setattr(suites, "brought", {})  # as another process finds it
    text = docs(run.path)
    links = re.findall(r'href="validations/([^"]+)"', text)
    assert links == ["rounds/0002/reflect/reflections.html", "rounds/0001/collect/reflections.html"]


@pytest.mark.slow
def test_own_suites_are_in_the_docs(run: RunDirectory) -> None:
    attempt(run, 2)
    text = docs(run.path, [2], OWN)
    assert text.count("failed") == 1 and text.count("passed") == 2


@pytest.mark.slow
def test_the_report_links_to_them_from_wherever_it_lies(run: RunDirectory, tmp_path: Path) -> None:
    attempt(run, 2)
    assert "crl checks docs" in write_report(run.path).read_text(encoding="utf-8")
    docs(run.path)
    assert f'<a href="{INDEX}">Data Docs</a>' in write_report(run.path).read_text(encoding="utf-8")
    elsewhere = write_report(run.path, tmp_path / "page.html").read_text(encoding="utf-8")
    assert f'<a href="{run.path.name}/{INDEX}">Data Docs</a>' in elsewhere


def test_a_round_that_is_not_there_is_refused(run: RunDirectory) -> None:
    with pytest.raises(BadInput, match="no round yet"):
        docs(run.path)
    attempt(run, 2)
    with pytest.raises(BadInput, match="no round 7"):
        docs(run.path, [7])
