"""The catalog of a run after it was moved or copied, and rounds that have no bank: neither is answered with nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from crl.errors import BadInput
from crl.report.views import CATALOG, connect, query, write_catalog
from tests.marks import sampled
from tests.unit.report.builder import build_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "a [strange]'s *name")


@pytest.mark.slow
def test_the_catalog_holds_views_only_and_is_rebuilt_after_a_move(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run, tmp_path / "here"))
    catalog = write_catalog(path)
    moved = path.rename(tmp_path / "there")
    with duckdb.connect(str(moved / CATALOG), read_only=True) as connection:
        # An empty answer would be a wrong one.
        for sql in (
            "SELECT * FROM episodes",
            "SELECT 1 FROM episodes WHERE round = 2",
            "FROM stages",
            "FROM bank_text",
        ):
            with pytest.raises(duckdb.Error, match="crl catalog RUN"):
                connection.execute(sql).fetchall()
    assert write_catalog(moved) == moved / CATALOG != catalog
    with duckdb.connect(str(moved / CATALOG), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM episodes").fetchall() == [(8,)]
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
    assert not [path for path in moved.iterdir() if path.name.startswith(".tmp")]


QUERIES = (
    "FROM episodes", "SELECT count(*) FROM episodes", "SELECT 1 FROM episodes LIMIT 1", "SELECT EXISTS(FROM stages)",
    "SELECT max(round) FROM bank_snapshots", "FROM bank_at(1)", "SELECT text FROM bank_text WHERE round = 2 LIMIT 1",
    "SELECT count(*) FROM lineage", "SELECT condition FROM success_by_condition LIMIT 1",
)  # fmt: skip


@pytest.mark.slow
def test_a_copied_catalog_never_answers_from_the_run_it_was_copied_from(run: Path, tmp_path: Path) -> None:
    first = Path(shutil.copytree(run, tmp_path / "it's first"))
    write_catalog(first)
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    for sql in QUERIES:
        with duckdb.connect(str(copy / CATALOG), read_only=True) as connection:
            with pytest.raises(duckdb.Error, match="crl catalog RUN") as raised:
                connection.execute(sql).fetchall()
            assert str(first / CATALOG) in str(raised.value) and str(copy / CATALOG) in str(raised.value)
    with duckdb.connect() as both:
        both.execute(f"ATTACH '{str(first / CATALOG).replace(chr(39), chr(39) * 2)}' AS a (READ_ONLY)")
        assert both.execute("SELECT count(*) FROM a.episodes").fetchall() == [(8,)]
        both.execute(f"ATTACH '{copy / CATALOG}' AS b (READ_ONLY)")
        with pytest.raises(duckdb.Error, match="copied or moved"):
            both.execute("SELECT count(*) FROM b.episodes").fetchall()
    write_catalog(copy)
    for path in (first, copy):
        with duckdb.connect(str(path / CATALOG), read_only=True) as connection:
            assert all(connection.execute(sql).fetchall() for sql in QUERIES)


def test_a_catalog_is_known_through_links_and_relative_paths(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(run, tmp_path / "real" / "run"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_catalog(tmp_path / "link" / "run")
    monkeypatch.chdir(tmp_path)
    for opened in (path / CATALOG, Path("link/run") / CATALOG, Path("real/../real/run") / CATALOG):
        with duckdb.connect(str(opened), read_only=True) as connection:
            assert connection.execute("SELECT count(*) FROM episodes").fetchall() == [(8,)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    sampled([
        "FROM bank_at(7)",
        "SELECT 1 FROM bank_at(7)",
        "SELECT count(*) FROM bank_at(latest_round() + 5) WHERE entry_id = 'nobody'",
        "FROM bank_diff(1, 7)",
        "FROM bank_diff(7, 2)",
        "SELECT count(*) FROM bank_diff(7, 7)",
    ], 3),
)  # fmt: skip
def test_a_round_without_a_bank_is_an_error_that_names_those_with_one(run: Path, sql: str) -> None:
    with pytest.raises(BadInput, match="no bank after round 7") as raised:
        query(run, sql)
    assert "rounds 0 to 2" in str(raised.value) and "query failed" not in str(raised.value)
    write_catalog(run)
    with duckdb.connect(str(run / CATALOG), read_only=True) as catalog:
        catalog.execute("SET VARIABLE newest = (SELECT max(round) FROM bank_snapshots)")
        asked = sql.replace("latest_round()", "getvariable('newest')")
        with pytest.raises(duckdb.Error, match="no bank after round 7; there are those after rounds 0 to 2"):
            catalog.execute(asked).fetchall()


def test_an_empty_bank_is_no_error_and_a_round_that_is_not_yet_is_one(run: Path, tmp_path: Path) -> None:
    assert query(run, "FROM bank_at(0)")[1] == [] and query(run, "FROM bank_diff(0, 0)")[1] == []
    with pytest.raises(BadInput, match="rounds 0 to 1"):
        query(run, "FROM bank_at(2)", until=1)
    with pytest.raises(BadInput, match="no bank after round 1"):
        query(run, "FROM bank_at(1)", until=0)
    (tmp_path / "rounds").mkdir()
    with pytest.raises(BadInput, match="Expected: a run with a bank"):
        query(tmp_path, "FROM bank_at(0)")
    for asked in ({"until": 7}, {"rounds": [1, 7]}):
        with pytest.raises(BadInput, match="no round 7") as raised:
            connect(run, **asked)  # type: ignore[arg-type]
        assert "from 0 to 2" in str(raised.value)
