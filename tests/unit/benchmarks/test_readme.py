"""The README's table and pictures are made from runs: what it says of one is true of that one."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.headline import inserted
from benchmarks.readme import MARK, main, story, success, tables
from tests.unit.report.builder import build_run
from tests.unit.report.scripted import Ask, ScriptedRun, experiment

README = f"""# A page

{MARK}

|seed|of another day|
|-|-|
|9|64/64|

Between, a table of another kind.

|a|b|
|-|-|
"""


def run_of(folder: Path, seed: int, won: int, rounds: int) -> Path:
    """Held-out games of the last round: `won` of four."""
    made = experiment("told")
    made = made.model_copy(update={"method": made.method.model_copy(update={"seed": seed})})
    with ScriptedRun(folder, made) as scripted:
        scripted.initialize()
        (entry,) = scripted.play(Ask("add", "keep to the wall " * 20), evaluated=[("e", True)] * 4)
        for number in range(2, rounds + 1):
            evaluated = [(entry, number == rounds and index < won) for index in range(4)]
            scripted.play(guided=[(entry, True), (entry, False)], evaluated=evaluated)
        return scripted.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [run_of(tmp_path_factory.mktemp("runs"), seed, won, rounds=2) for seed, won in ((7, 3), (5, 1))]


def told(svg: str) -> str:
    return " ".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")


def test_the_table_has_every_run_by_seed(runs: list[Path]) -> None:
    head, _, *rows = success(runs).splitlines()
    assert head == "|seed|random|before|round 2, with its bank|round 2, without|"
    assert rows == ["|5|–|–|1/4|–|", "|7|–|–|3/4|–|"]


def test_runs_are_compared_after_the_same_round(runs: list[Path], tmp_path: Path) -> None:
    longer = run_of(tmp_path, 6, 4, rounds=3)
    assert success([runs[0], longer]).splitlines()[2:] == ["|6|–|–|0/4|–|", "|7|–|–|3/4|–|"]


def test_the_table_is_put_in_its_place_and_nowhere_else(runs: list[Path]) -> None:
    table = success(runs)
    text = inserted(README, table, MARK)
    assert "of another day" not in text and text.count(table) == 1 and text.endswith("|a|b|\n|-|-|\n")
    assert inserted(text, table, MARK) == text, "again changes nothing"
    with pytest.raises(ValueError, match="has no line"):
        inserted("# A page\n", table, MARK)


def test_pictures_are_svg_that_asks_no_server(runs: list[Path], tmp_path: Path) -> None:
    shown, why = tables(build_run(tmp_path)), story(runs[0])
    assert why is not None
    assert "held out, with bank" in told(shown) and "seconds per stage" in told(shown)
    assert "experience x-d-r0001-0-o0" in told(why) and "used in 2 episodes" in told(why)
    assert " …" in told(why), "a long line says that it is cut"
    assert all("@font-face" not in svg and "cdn" not in svg for svg in (shown, why))


@pytest.mark.slow
def test_all_of_it_is_written(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(README)
    main(runs, tmp_path)
    assert success(runs) in (tmp_path / "README.md").read_text()
    assert all((tmp_path / "docs" / name).read_text().startswith("<svg") for name in ("quickstart.svg", "why.svg"))
