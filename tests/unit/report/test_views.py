"""Views: every table readable, moved runs, hostile paths, and a session that can neither look out nor write."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from crl.errors import BadInput, RecordDamaged
from crl.records import ROW_TYPES, schema_of
from crl.report.views import CATALOG, columns_of, connect, query, reading, write_catalog
from tests.unit.report.builder import NEW, OLD, build_run, stages


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "a [strange]'s *name")


def test_every_row_type_is_a_view_with_all_rows(run: Path) -> None:
    written: dict[str, int] = {}
    for tables in stages().values():
        for rows in tables:
            written[type(rows[0]).table] = written.get(type(rows[0]).table, 0) + len(rows)
    with connect(run) as connection:
        for row_type in ROW_TYPES:
            if row_type.table == "bank_texts":
                continue
            count = connection.execute(f'SELECT count(*) FROM "{row_type.table}"').fetchall()[0][0]
            assert count == written.get(row_type.table, 0), row_type.table


def test_views_have_the_columns_and_types_of_the_records(run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (run, empty):
        with connect(path) as connection:
            for row_type in ROW_TYPES:
                described = connection.execute(f'DESCRIBE "{row_type.table}"').fetchall()
                found = [(row[0], str(row[1])) for row in described]
                assert found == [(name, kind) for name, kind, _ in columns_of(row_type)]
                assert set(schema_of(row_type).names) <= {name for name, _ in found}


def test_rows_without_a_round_get_that_of_their_directory(run: Path) -> None:
    _, rows = query(
        run, "SELECT round, stage, count FROM (SELECT round, stage, count(*) AS count FROM bank GROUP BY ALL)"
    )
    assert sorted(rows) == [(1, "consolidate", 1), (2, "consolidate", 1)]


def test_bank_text_joins_each_snapshot_with_its_texts_once(run: Path) -> None:
    _, rows = query(run, "SELECT round, text FROM bank_text ORDER BY round")
    assert rows == [(1, OLD), (2, NEW)]


def test_unfinished_stages_are_not_seen(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run, tmp_path / "copy"))
    shutil.copytree(path / "rounds/0002/collect", path / "rounds/0002/.tmp-collect-12-3")
    shutil.copytree(path / "rounds/0002/collect", path / "rounds/0002/.parts-collect/0000")
    shutil.copytree(path / "rounds/0002", path / "damaged/1/rounds/0002")
    assert query(path, "SELECT count(*) FROM episodes") == query(run, "SELECT count(*) FROM episodes")
    assert query(path, "SELECT count(*) FROM stages") == query(run, "SELECT count(*) FROM stages")


def test_stages_and_rounds_come_from_the_manifests(run: Path) -> None:
    _, rows = query(run, "SELECT round, stages FROM rounds ORDER BY round")
    assert rows == [(0, 3), (1, 5), (2, 7)]
    assert query(run, "SELECT DISTINCT seconds FROM stages")[1] == [(1.5,)]


@pytest.mark.parametrize(
    "statement",
    [
        "COPY episodes TO '{run}/stolen.csv'",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO episodes SELECT * FROM episodes",
        "SELECT 1; SELECT 2",
        "SET enable_external_access = true",
        "ATTACH '{run}/x.duckdb'",
        "INSTALL fts",
        "PRAGMA version",
        "EXPLAIN ANALYZE COPY episodes TO '{run}/stolen.csv'",
        "",
        "SELEC 1",
        "SELECT * FROM no_such_view",
    ],
)
def test_anything_but_one_working_select_is_refused(run: Path, statement: str) -> None:
    before = sorted(run.rglob("*"))
    with pytest.raises(BadInput):
        query(run, statement.format(run=str(run).replace("'", "''")))
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("function", ["read_text", "read_csv", "read_blob"])
def test_files_outside_the_run_cannot_be_read(run: Path, tmp_path: Path, function: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a\n1\n")
    inside = str(run).replace("'", "''").replace("[", "[[]").replace("*", "[*]")
    for path in (str(secret), f"{inside}/../secret.txt", f"{inside}-other/secret.txt"):
        with pytest.raises(BadInput, match=r"Permission|No files|not access"):
            query(run, f"SELECT * FROM {function}('{path}')")


def test_select_forms_and_parameters_work(run: Path) -> None:
    for sql in (
        "FROM episodes",
        "SHOW TABLES",
        "DESCRIBE episodes",
        "SUMMARIZE credits",
        "WITH a AS (SELECT 1) FROM a",
    ):
        assert query(run, sql)[1]
    _, rows = query(run, "SELECT count(*) FROM episodes WHERE guided = $guided", {"guided": True})
    assert rows == [(2,)]


def test_the_catalog_holds_views_only_and_is_rebuilt_after_a_move(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run, tmp_path / "here"))
    catalog = write_catalog(path)
    moved = path.rename(tmp_path / "there")
    with duckdb.connect(str(moved / CATALOG), read_only=True) as connection, pytest.raises(duckdb.Error):
        connection.execute("SELECT * FROM episodes")
    assert write_catalog(moved) == moved / CATALOG != catalog
    with duckdb.connect(str(moved / CATALOG), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM episodes").fetchall() == [(8,)]
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
    assert not [path for path in moved.iterdir() if path.name.startswith(".tmp")]


def test_a_file_that_is_no_parquet_is_reported_as_damage(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run, tmp_path / "copy"))
    for number in (1, 2):
        (path / f"rounds/{number:04d}/collect/episodes.parquet").write_bytes(b"nonsense")
    with pytest.raises(RecordDamaged, match="verify"), reading(path) as connection:
        connection.execute("SELECT * FROM episodes")


def test_a_manifest_that_is_no_json_does_not_hide_the_others(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run, tmp_path / "copy"))
    (path / "rounds/0001/collect/manifest.json").write_text("{")
    assert query(path, "SELECT count(*), count(seconds) FROM stages")[1] == [(15, 14)]
