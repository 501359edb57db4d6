"""`crl sql` takes SQL from anywhere: it changes nothing, and reads nothing but the run."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.made_run import Size, make
from crl.errors import BadInput, RecordDamaged
from crl.report.views import connect, query, write_catalog
from tests.marks import sampled
from tests.processes import PATIENCE_SECONDS, as_in_a_terminal, as_in_the_background
from tests.unit.report.builder import add_table

SECRET = "a secret of the neighbor"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("runs"), 1, Size(entries=8, changes=4, groups=4))


@pytest.fixture(scope="module")
def place(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a copy of the run, `run`, and `beside`, where a secret lies that links in the run lead to.
    Nothing that the tests type may change it."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(run, place / "run")
    beside = place / "beside"
    beside.mkdir()
    (beside / "secret.csv").write_text(f"text\n{SECRET}\n")
    (beside / "secret.json").write_text(f'{{"text": "{SECRET}"}}\n')
    with connect(run) as connection:
        connection.execute(f"COPY (SELECT '{SECRET}' AS text) TO '{beside}/secret.parquet'")
    (place / "run" / "link.csv").symlink_to(beside / "secret.csv")
    (place / "run" / "inside").symlink_to(beside, target_is_directory=True)
    return place


def content(place: Path) -> dict[str, bytes | str]:
    """Every file and link below a directory."""
    return {
        str(path.relative_to(place)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in place.rglob("*")
        if path.is_symlink() or path.is_file()
    }


OWN = "{run}/rounds/0001/plan/tasks.parquet"
CHANGING = [
    "INSERT INTO episodes SELECT * FROM episodes",
    "UPDATE episodes SET success = true",
    "DELETE FROM episodes",
    "MERGE INTO episodes USING tasks ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE episodes",
    "CREATE TABLE x AS SELECT 1",
    "CREATE OR REPLACE VIEW episodes AS SELECT 1",
    "CREATE MACRO bank_at(a) AS TABLE SELECT 1",
    "DROP VIEW episodes",
    "ALTER VIEW episodes RENAME TO x",
    "COPY episodes TO '{run}/stolen.csv'",
    "COPY (SELECT 1) TO '{beside}/stolen.csv'",
    "COPY tasks TO '" + OWN + "'",
    "EXPORT DATABASE '{beside}/all'",
    "IMPORT DATABASE '{beside}'",
    "ATTACH '{run}/x.duckdb'",
    "ATTACH '{run}/catalog.duckdb' (READ_ONLY)",
    "USE memory",
    "DETACH memory",
    "INSTALL fts",
    "LOAD icu",
    "PRAGMA version",
    "PRAGMA enable_profiling",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET allowed_directories = ['/']",
    "SET VARIABLE x = 1",
    "CALL enable_logging('QueryLog')",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "PREPARE x AS SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW episodes",
    "FROM tasks; COPY tasks TO '{run}/stolen.csv'",
    "EXPLAIN ANALYZE COPY episodes TO '{run}/stolen.csv'",
    "",
    "-- nothing",
    "SELEC 1",
    "SELECT * FROM no_such_view",
    # To DuckDB these are SELECTs.
    "WITH t AS (COPY (SELECT 1) TO '{beside}/stolen.csv') FROM t",
    "WITH t AS (COPY (SELECT * FROM tasks) TO '" + OWN + "') FROM t",
    "SELECT EXISTS (WITH t AS (COPY (SELECT * FROM tasks) TO '" + OWN + "') FROM t)",
    "WITH t AS (INSERT INTO episodes SELECT * FROM episodes RETURNING *) FROM t",
    "WITH t AS (DELETE FROM episodes RETURNING *) FROM t",
    "WITH t AS (UPDATE episodes SET success = true RETURNING *) FROM t",
    "SELECT * FROM enable_logging('QueryLog', storage = 'file', storage_config = {{'path': '{beside}/log'}})",
    "SELECT * FROM enable_profiling(save_location = '{beside}/profile.json')",
    "WITH t AS (COPY (SELECT 1) TO '" + OWN + "' (FORMAT parquet, USE_TMP_FILE false)) FROM t",
    "FROM query('WITH t AS (COPY (SELECT 1) TO ''" + OWN + "'' (FORMAT parquet, USE_TMP_FILE false)) FROM t')",
    "FROM json_execute_serialized_sql(json_serialize_sql("
    "'WITH t AS (COPY (SELECT 1) TO ''" + OWN + "'' (FORMAT parquet, USE_TMP_FILE false)) FROM t'))",
    "FROM (WITH t AS (COPY (SELECT 1) TO '" + OWN + "' (FORMAT parquet, USE_TMP_FILE false)) FROM t)",
    "SELECT * FROM checkpoint()",
    "SELECT nextval('x')",
    "SELECT 1 ORDER BY setval('x', 1)",
]
READING = [
    *(
        f"SELECT * FROM {function}('{path}')"
        for function, path in [
            ("read_text", "{beside}/secret.csv"),
            ("read_text", "{run}/../beside/secret.csv"),
            ("read_text", "{run}/link.csv"),
            ("read_text", "{run}/inside/*"),
            ("read_text", "{run}*/secret.csv"),
            ("read_text", "{run}/experiment.yaml"),
            ("read_blob", "{beside}/secret.csv"),
            ("read_csv", "{beside}/secret.csv"),
            ("read_csv", "{run}/inside/secret.csv"),
            ("read_csv_auto", "{beside}/s[e]cret.csv"),
            ("sniff_csv", "{beside}/secret.csv"),
            ("read_json", "{beside}/secret.json"),
            ("read_json_objects", "{beside}/secret.json"),
            ("read_ndjson_auto", "{beside}/secret.json"),
            ("read_parquet", "{beside}/secret.parquet"),
            ("read_parquet", OWN),
            ("parquet_scan", "{run}/inside/secret.parquet"),
            ("parquet_metadata", "{beside}/secret.parquet"),
            ("parquet_schema", "{beside}/secret.parquet"),
            ("glob", "{beside}/*"),
            ("glob", "{run}/inside/*"),
            ("read_duckdb", "{run}/catalog.duckdb"),
            ("read_text", "/etc/passwd"),
            ("query", "FROM read_text(''{beside}/secret.csv'')"),
            ("query_table", "{beside}/secret.csv"),
        ]
    ),
    "SELECT * FROM '{beside}/secret.csv'",
    "SELECT * FROM '{beside}/secret.parquet'",
    "SELECT * FROM '{run}/link.csv'",
    "SELECT * FROM '{run}/inside/*.parquet'",
    'SELECT * FROM "{run}/../beside/secret.csv"',
    "SELECT * FROM '/etc/passwd'",
    "FROM '{beside}/secret.json'",
    "DESCRIBE '{beside}/secret.csv'",
    "SUMMARIZE '{beside}/secret.parquet'",
    "SELECT (SELECT content FROM read_text('{beside}/secret.csv'))",
    "SELECT 1 WHERE EXISTS (FROM read_text('{beside}/secret.csv'))",
    "FROM tasks JOIN read_csv('{beside}/secret.csv') ON true",
    "FROM range(3) UNION ALL BY NAME FROM read_csv('{beside}/secret.csv')",
    "WITH t AS (FROM read_csv('{beside}/secret.csv')) FROM t",
    "FROM (PIVOT read_csv('{beside}/secret.csv') ON text IN ('a') USING count(*))",
    "FROM Read_Text('{beside}/secret.csv')",
    "FROM system.main.read_text('{beside}/secret.csv')",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{beside}/secret.csv'')'))",
    "FROM arrow_scan(0, 0, 0)",
    "FROM pandas_scan(0)",
    "FROM duckdb_secrets()",
    "FROM duckdb_logs()",
    "SELECT getenv('HOME')",
    "SELECT * FROM rows_of_the_caller",
]


@pytest.mark.parametrize("statement", sampled([*CHANGING, *READING], 9))
def test_attempts_are_refused_and_leave_no_trace(
    place: Path, statement: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    import pyarrow as pa

    rows_of_the_caller = pa.table({"text": [SECRET]})  # DuckDB for Python finds variables of the calling program
    monkeypatch.chdir(place)
    before = content(place)
    with pytest.raises(BadInput) as refused:
        query(place / "run", statement.format(run=place / "run", beside=place / "beside"))
    assert SECRET not in str(refused.value)
    assert content(place) == before
    assert rows_of_the_caller.num_rows == 1


@pytest.mark.parametrize(
    "harmless", ["write_log('x')", "list_transform([1], lambda x: write_log('x'))", "getvariable('x')"]
)
def test_what_only_the_session_itself_would_notice_leaves_no_trace(place: Path, harmless: str) -> None:
    """It ends with the query: no log is kept, and there is no variable."""
    before = content(place)
    query(place / "run", f"SELECT {harmless}")
    assert content(place) == before


def test_the_refusal_says_what_can_be_used(place: Path) -> None:
    with pytest.raises(BadInput, match=r"read_text\(\) in FROM[\s\S]*bank_at[\s\S]*docs/sql.md"):
        query(place / "run", "FROM read_text('/etc/passwd')")
    with pytest.raises(BadInput, match=r"COPY inside a SELECT"):
        query(place / "run", "WITH t AS (COPY (SELECT 1) TO 'x.csv') FROM t")
    with pytest.raises(BadInput, match=r"cannot use files[\s\S]*SHOW TABLES"):
        query(place / "run", "FROM '/etc/hosts.csv'")


@pytest.mark.parametrize(
    "link", ["rounds/0001/plan/tasks.parquet", "rounds/0001/plan", "rounds/0001", "bank/segments/x.parquet"]
)
def test_a_link_in_place_of_a_file_of_the_record_is_no_way_out(place: Path, tmp_path: Path, link: str) -> None:
    place = shutil.copytree(place, tmp_path / "place", symlinks=True)
    target = place / "run" / link
    kept = place / "beside" / "kept"
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        target.rename(kept)
    else:
        shutil.copy(place / "beside/secret.parquet", kept)
    target.symlink_to(kept)
    with pytest.raises(RecordDamaged, match="leads out of the run"):
        query(place / "run", "SELECT count(*) FROM tasks")


def test_a_large_result_is_sorted_without_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = content(place)
    assert query(place / "run", "SELECT count(*) FROM (SELECT hash(range) AS h FROM range(2000000) ORDER BY h)")[1]
    assert content(place) == before


def interrupted(run: Path, sql: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `crl sql` to which SIGINT is sent once its query has a process."""
    with subprocess.Popen(
        [sys.executable, "-m", "crl", "sql", str(run), sql], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            until(lambda: psutil.Process(process.pid).children())
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return process.returncode, out, said


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_long_query_can_be_interrupted(place: Path) -> None:
    """At any moment: it has a process of its own, which ends with the command."""
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7"
    with as_in_a_terminal():
        code, _, said = interrupted(place / "run", endless)
    assert code == 130 and "Traceback" not in said, said


@pytest.mark.slow
def test_in_the_background_of_a_script_ctrl_c_is_not_for_it(place: Path) -> None:
    with as_in_the_background():
        code, out, said = interrupted(place / "run", "SELECT sum(range) AS total FROM range(1000)")
    assert code == 0 and "499500" in out, said


@pytest.mark.parametrize("table", ["worldModel", "my-rows"])
def test_a_table_of_another_package_may_have_any_name(run: Path, tmp_path: Path, table: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    add_table(tmp_path / "run", "0001/plan", f"{table}.parquet", pa.table({"a": [1, 2]}))
    for name in (table, table.upper()):
        assert query(tmp_path / "run", f'SELECT count(*) FROM "{name}"')[1] == [(2,)]


@pytest.mark.parametrize("catalog", [False, True])
def test_names_in_a_file_that_somebody_sent_are_names_and_no_sql(run: Path, tmp_path: Path, catalog: bool) -> None:
    """A table of another package's recipe may have columns of any name; a query makes a view of it."""
    victim, written = tmp_path / "run", tmp_path / "written"
    shutil.copytree(run, victim)
    evil = f"""x" FROM (SELECT 1 AS "x"); COPY (SELECT 42) TO '{written}'; CREATE VIEW "zz" AS SELECT 1 AS "y"""
    stage = victim / "rounds" / "0001" / "plan"
    kinds = {"odd": pa.array([3], pa.int16()), evil: pa.array(["a"])}
    add_table(victim, "0001/plan", "others.parquet", pa.table(kinds))
    pq.write_table(pa.table({"a": [1]}), stage / f"""v" AS SELECT 1; COPY (SELECT 1) TO '{written.name}'; --.parquet""")
    if catalog:
        with duckdb.connect(str(write_catalog(victim)), read_only=True) as connection:
            found = connection.sql("FROM others").fetchall()
    else:
        _, found = query(victim, "FROM others")
    assert [tuple(map(str, row[-2:])) for row in found] == [("3", "a")]
    assert not written.exists() and not Path(written.name).exists()
