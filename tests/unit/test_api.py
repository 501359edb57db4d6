"""`crl.open`: what it answers, how late it reads, and the errors that it gives."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import duckdb
import pytest

import crl
from crl.errors import BadInput, RecordDamaged, RunDirectoryUnusable
from tests.unit.report.builder import NEW, OLD, build_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "tiny"))


def contents(path: Path) -> dict[str, str]:
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in path.rglob("*") if each.is_file()}


def test_a_run_is_found_by_path_and_by_name(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_RUNS", str(made.parent))
    assert crl.open(made).path == crl.open(str(made)).path == crl.open("tiny").path == made
    assert repr(crl.open("tiny")) == f"<Run {made}: rounds 0 to 2>"


def test_a_run_that_is_not_there_names_those_that_are(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_RUNS", str(made.parent))
    with pytest.raises(BadInput, match=r"(?s)no run 'tinny'.*one of tiny"):
        crl.open("tinny")


def test_banks_have_texts_and_usefulness_of_their_round(made: Path) -> None:
    run = crl.open(made)
    first, second = (run.bank(number).project("entry_id, text, version").fetchall() for number in (1, 2))
    assert first == [("e1", OLD, 1)] and second == [("e1", NEW, 2)]
    assert run.bank().fetchall() == run.bank(2).fetchall()
    assert run.bank(2, family="room").shape[0] == 1 and run.bank(2, family="x' OR true --").shape[0] == 0


def test_episodes_narrow_by_what_is_asked(made: Path) -> None:
    run = crl.open(made)
    rows = run.episodes().project("round, guided, success").fetchall()
    assert len(rows) > 2
    assert run.episodes(2).shape[0] == len([row for row in rows if row[0] == 2])
    assert run.episodes(2, guided=True, success=False).shape[0] == rows.count((2, True, False)) == 1
    assert run.episodes(guided=False).shape[0] == len([row for row in rows if not row[1]])


def test_curves_are_success_by_condition(made: Path) -> None:
    rows = crl.open(made).curves().filter("round = 2 AND condition = 'guided'").fetchall()
    assert [row[:6] for row in rows] == [(2, "guided", False, 1, 2, 0.5)]


def test_a_relation_reads_when_it_is_asked_and_stays_at_its_state(path: Path) -> None:
    relation = crl.open(path).sql("SELECT round FROM stages ORDER BY round DESC LIMIT 1")
    shutil.copytree(path / "rounds" / "0002", path / "rounds" / "0003")
    assert relation.fetchall() == [(2,)]
    assert crl.open(path).sql("SELECT max(round) FROM stages").fetchall() == [(3,)]


def test_an_entry_tells_its_story_and_history(made: Path) -> None:
    entry = crl.open(made).entry("e1")
    assert [version.text for version in entry.story().versions] == [OLD, NEW]
    assert [event.kind for event in entry.history()][:2] == ["add", "update"]
    with pytest.raises(BadInput, match=r"(?s)no experience 'e9'.*e1"):
        crl.open(made).entry("e9").story()


def test_nothing_is_written_and_nothing_outside_is_read(path: Path, tmp_path: Path) -> None:
    run, before = crl.open(path), contents(path)
    (tmp_path / "other.csv").write_text("a\n1\n")
    for query in (f"FROM '{tmp_path}/other.csv'", "DELETE FROM episodes", "SELECT 1; SELECT 2", "SELECT nothing"):
        with pytest.raises(BadInput):
            run.sql(query)
    with pytest.raises(duckdb.PermissionException):
        run.episodes().write_csv(str(tmp_path / "out.csv"))
    assert run.bank().fetchall() and run.entry("e1").history()
    assert contents(path) == before


def test_rounds_that_are_not_there_are_refused_at_once(made: Path) -> None:
    run = crl.open(made)
    with pytest.raises(BadInput, match=r"(?s)no bank after round 9.*rounds 0 to 2"):
        run.bank(9)
    with pytest.raises(BadInput, match="no round 9"):
        run.sql("SELECT 1", until=9)


def test_damage_is_told_as_on_the_command_line_and_hides_nothing_else(path: Path) -> None:
    run = crl.open(path)
    (damaged,) = (path / "rounds" / "0002").rglob("episodes.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(RecordDamaged, match="crl verify"):
        run.episodes()
    assert run.bank().shape[0] == 1
    (path / "rounds" / "0002" / "consolidate" / "bank_changes.parquet").unlink()
    with pytest.raises(RecordDamaged, match="crl mend"):
        run.bank(2)
    assert run.sql("SELECT count(*) FROM stages").fetchall()[0][0] > 10


def test_the_method_of_a_run_without_one_is_an_error_of_its_own(made: Path) -> None:
    run = crl.open(made)
    assert run.rounds == [0, 1, 2]
    with pytest.raises(RunDirectoryUnusable, match=r"experiment\.yaml"):
        _ = run.method
