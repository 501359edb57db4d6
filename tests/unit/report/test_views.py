"""Views: every table readable, one state a session, runs of before, moved runs, hostile paths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from benchmarks.made_run import Size, make, writing
from crl.bank.changes import applied
from crl.errors import BadInput, RecordDamaged
from crl.records import ROW_TYPES, BankChange, BankEntry, schema_of
from crl.report.summary import summarize
from crl.report.views import CATALOG, columns_of, connect, query, reading, write_catalog
from tests.marks import sampled
from tests.unit.report.builder import NEW, OLD, build_run, stages

SMALL = Size(entries=12, changes=8, groups=4, capacity=6)
COLUMNS = ", ".join(f'"{name}"' for name in schema_of(BankEntry).names)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "a [strange]'s *name")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five rounds, of which two store the whole bank."""
    return make(tmp_path_factory.mktemp("made"), 5, SMALL)


def banks(run: Path) -> dict[int, list[dict[str, object]]]:
    """The bank after every round, from the files: its base and the changes since then."""
    found = {}
    table = schema_of(BankEntry).empty_table()
    for number in sorted(int(path.name) for path in (run / "rounds").iterdir()):
        at = run / f"rounds/{number:04d}/{'initialize' if number == 0 else 'consolidate'}"
        changes = pq.read_table(at / "bank_changes.parquet")
        whole = at / "bank.parquet"
        table = pq.read_table(whole) if whole.exists() else applied(table, [changes])
        found[number] = sorted(table.to_pylist(), key=lambda row: row["entry_id"])
    return found


def bank_view(connection: duckdb.DuckDBPyConnection, number: int) -> list[dict[str, object]]:
    return rows_of_sql(connection, f"SELECT {COLUMNS} FROM bank WHERE round = {number} ORDER BY entry_id")


def rows_of_sql(connection: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, object]]:
    return connection.sql(sql).to_arrow_table().to_pylist()


def test_every_row_type_is_a_view_with_all_rows(run: Path) -> None:
    written: dict[str, int] = {}
    for tables in stages().values():
        for rows in filter(None, tables):
            written[type(rows[0]).table] = written.get(type(rows[0]).table, 0) + len(rows)
    written["bank"] = 2  # put together: one entry after each of two rounds
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
        write_catalog(path)
        with connect(path) as pinned, duckdb.connect(str(path / CATALOG), read_only=True) as catalog:
            for row_type in ROW_TYPES:
                for connection in (pinned, catalog):
                    described = connection.execute(f'DESCRIBE "{row_type.table}"').fetchall()
                    found = [(row[0], str(row[1])) for row in described]
                    assert found == [(name, kind) for name, kind, _ in columns_of(row_type)]
                    assert set(schema_of(row_type).names) <= {name for name, _ in found}


def test_rows_without_a_round_get_that_of_their_directory(run: Path) -> None:
    assert query(run, "SELECT round, stage, status FROM buffer ORDER BY ALL")[1] == [
        (2, "credit", "selected"),
        (2, "credit", "waiting"),
    ]


def test_bank_text_joins_each_snapshot_with_its_texts_once(run: Path) -> None:
    _, rows = query(run, "SELECT round, stage, text FROM bank_text ORDER BY round")
    assert rows == [(1, "consolidate", OLD), (2, "consolidate", NEW)]


@pytest.mark.slow
def test_the_bank_of_every_round_is_what_its_files_come_to(made: Path) -> None:
    expected = banks(made)
    stored = [path.parts[-3] for path in sorted(made.glob("rounds/*/*/bank.parquet"))]
    assert stored[0] == "0000" and 1 < len(stored) < 6, "both ways of storing a bank are to be there"
    write_catalog(made)
    with connect(made) as pinned, duckdb.connect(str(made / CATALOG), read_only=True) as catalog:
        for number, rows in expected.items():
            for connection in (pinned, catalog):
                assert bank_view(connection, number) == rows
                at = f"SELECT {COLUMNS} FROM bank_at({number}) ORDER BY entry_id"
                assert rows_of_sql(connection, at) == rows
        sizes = pinned.execute("SELECT round, entries FROM bank_snapshots ORDER BY round").fetchall()
        assert sizes == [(number, len(rows)) for number, rows in expected.items()]
    with connect(made, [3]) as some:
        assert bank_view(some, 3) == expected[3] and bank_view(some, 2) == []
        assert some.execute("SELECT DISTINCT round FROM bank_changes").fetchall() == [(3,)]


@pytest.mark.slow
def test_what_changed_between_two_rounds(made: Path) -> None:
    expected = banks(made)
    for earlier, later in ((1, 4), (2, 2), (4, 1)):
        before, after = ({row["entry_id"]: row for row in expected[number]} for number in (earlier, later))
        told = {
            entry: (
                "added" if entry not in before else "removed" if entry not in after else "changed",
                before.get(entry, {}).get("version"), after.get(entry, {}).get("version"),
            )
            for entry in before.keys() | after.keys()
            if before.get(entry, {}).get("content_digest") != after.get(entry, {}).get("content_digest")
        }  # fmt: skip
        _, rows = query(
            made, f"SELECT entry_id, change, version_before, version_after FROM bank_diff({earlier}, {later})"
        )
        assert {row[0]: row[1:] for row in rows} == told
        without_text = "(change <> 'added' AND text_before IS NULL) OR (change <> 'removed' AND text_after IS NULL)"
        assert query(made, f"FROM bank_diff({earlier}, {later}) WHERE {without_text}")[1] == []


@pytest.mark.parametrize("name", sampled(["bank_changes", "bank_snapshots", "bank", "segment"], 2))
def test_lost_files_of_a_bank_are_named_and_never_left_out(made: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(made, tmp_path / "run"))
    number = max(int(file.parts[-3]) for file in path.glob(f"rounds/*/*/{name}.parquet")) if name == "bank" else 3
    at = path / f"rounds/{number:04d}/consolidate"
    shared = json.loads((at / "manifest.json").read_text())["digested"]["shared"]
    lost = path / next(file for file in shared if "segments" in file) if name == "segment" else at / f"{name}.parquet"
    lost.unlink()
    with pytest.raises(RecordDamaged, match=lost.stem):
        query(path, "SELECT count(text) FROM bank_text")
    with pytest.raises(RecordDamaged), reading(path) as run:
        run.execute("SELECT round, count(text) FROM bank_text GROUP BY round").fetchall()
    expected = banks(made)
    with connect(path, until=number - 1) as then:
        assert bank_view(then, number - 1) == expected[number - 1]


@pytest.mark.parametrize("lost", sampled(["rounds/0003/consolidate", "the files", "rounds/0003", "the first round"], 2))
def test_a_lost_stage_that_published_a_bank_is_named(made: Path, tmp_path: Path, lost: str) -> None:
    path = Path(shutil.copytree(made, tmp_path / "run"))
    stage = path / "rounds/0003/consolidate"
    if lost == "the files":
        for file in stage.glob("bank*.parquet"):
            file.unlink()
    elif lost == "the first round":  # nothing is between rounds: the next bank names what it was made from
        stage = path / "rounds/0000/initialize"
        manifest = path / "rounds/0001/consolidate/manifest.json"
        content = json.loads(manifest.read_text())
        content["digested"]["inputs"] = {"0000/initialize": "", "0000/evaluate": ""}
        manifest.write_text(json.dumps(content))
        shutil.rmtree(stage.parent)
    else:
        shutil.rmtree(path / lost)
    for sql in ("SELECT count(*) FROM bank", "SELECT round, entries FROM bank_snapshots", "FROM bank_events"):
        with pytest.raises(RecordDamaged, match=str(stage.relative_to(path))):
            query(path, sql)
    with pytest.raises(RecordDamaged), reading(path) as run:
        run.execute("SELECT round, count(*) FROM bank GROUP BY round").fetchall()
    assert query(path, "SELECT count(*) FROM stages")[1]
    if lost != "the first round":
        assert query(path, "SELECT max(round) FROM bank", until=2)[1] == [(2,)]


@pytest.mark.parametrize("name", sampled(["bank", "bank_changes", "bank_snapshots"], 3))
def test_the_catalog_shows_no_bank_that_has_lost_a_file(made: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(made, tmp_path / "run"))
    bases = sorted(int(file.parts[-3]) for file in path.glob("rounds/*/*/bank.parquet"))
    changed = [number for number in range(1, 5) if {number, number + 1}.isdisjoint(bases)]
    number = bases[-1] if name == "bank" else changed[0]
    (path / f"rounds/{number:04d}/consolidate/{name}.parquet").unlink()
    write_catalog(path)
    later = number if name == "bank" else number + 1
    expected = banks(made)
    with duckdb.connect(str(path / CATALOG), read_only=True) as catalog:
        for sql in (f"FROM bank WHERE round = {later}", "SELECT count(*) FROM bank", f"FROM bank_at({later})"):
            with pytest.raises(duckdb.Error, match="crl verify RUN"):
                catalog.execute(sql).fetchall()
        # What is whole can be read all the same: the newest round may be half seen while it is published.
        assert bank_view(catalog, number - 1) == expected[number - 1]
        for sql in ("SELECT count(*) FROM bank WHERE round IN ($1, $2)", "SELECT count(*) FROM bank_diff($1, $2)"):
            assert catalog.execute(sql, [0, number - 1]).fetchall()


@pytest.mark.parametrize("how", sampled(["no Parquet", "gone"], 2))
def test_a_damaged_bank_is_in_the_way_of_no_other_view(made: Path, tmp_path: Path, how: str) -> None:
    path = Path(shutil.copytree(made, tmp_path / "run"))
    damaged = [*path.glob("rounds/*/*/bank*.parquet"), *path.glob("bank/segments/*.parquet")]
    for file in damaged:
        file.unlink() if how == "gone" else file.write_bytes(b"nonsense")
    asked = [
        "FROM episodes ORDER BY ALL",
        "FROM rounds",
        "SHOW TABLES",
        "DESCRIBE episodes",
        "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY ALL",
    ]
    for sql in asked:
        assert query(path, sql) == query(made, sql)
    assert query(path, "SUMMARIZE credits")[1]
    with pytest.raises(RecordDamaged):
        query(path, "FROM bank")


@pytest.mark.parametrize("name", sampled(["bank_changes", "bank_snapshots", "bank_events", "bank"], 2))
def test_the_round_table_leaves_out_what_a_lost_file_held(made: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(made, tmp_path / "run"))
    lost = max(path.glob(f"rounds/*/*/{name}.parquet"))
    lost.unlink()
    before, after = summarize(made), summarize(path)
    number = int(lost.parts[-3])
    assert len(before) == len(after)
    assert [each for each in before if each.round != number] == [each for each in after if each.round != number]
    whole, left = ([each for each in some if each.round == number][-1] for some in (before, after))
    assert left.bank == (None if name == "bank_snapshots" else whole.bank)
    moved = whole.arrived, whole.left, whole.rewritten
    assert moved != ({}, {}, 0)
    assert (left.arrived, left.left, left.rewritten) == (({}, {}, 0) if name == "bank_changes" else moved)
    assert left.changes == ({} if name == "bank_events" else whole.changes)


def test_a_damaged_file_is_not_blamed_on_the_query(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "run"))
    damaged = path / "rounds/0003/consolidate/bank_events.parquet"
    for content in (b"", damaged.read_bytes()[:20] + bytes(40) + damaged.read_bytes()[60:]):
        damaged.write_bytes(content)
        with pytest.raises(RecordDamaged, match="bank_events"):
            query(path, "FROM bank_events")


@pytest.mark.slow
def test_a_session_sees_one_state_whatever_is_published_meanwhile(tmp_path: Path) -> None:
    with writing(tmp_path, SMALL) as made:
        made.round()
        write_catalog(made.path)
        tables = [row_type.table for row_type in ROW_TYPES] + ["stages", "rounds", "lineage"]
        with (
            connect(made.path) as pinned,
            duckdb.connect(str(made.path / CATALOG), read_only=True) as catalog,
        ):
            before = {name: pinned.execute(f'SELECT count(*) FROM "{name}"').fetchall() for name in tables}
            # Two rounds later there are kinds of files that there were none of before.
            for _ in range(2):
                made.round()
            assert {name: pinned.execute(f'SELECT count(*) FROM "{name}"').fetchall() for name in tables} == before
            assert pinned.execute("SELECT latest_round()").fetchall() == [(1,)]
            newest = catalog.execute("SELECT max(round) FROM bank_snapshots").fetchall()
            assert newest == [(3,)] == query(made.path, "SELECT latest_round()")[1]
            with connect(made.path) as now:
                for name in tables:
                    count = f'SELECT count(*) FROM "{name}"'
                    assert catalog.execute(count).fetchall() == now.execute(count).fetchall()


def test_a_run_as_it_was_after_a_round(made: Path, tmp_path: Path) -> None:
    then = Path(shutil.copytree(made, tmp_path / "run"))
    for number in (4, 5):
        shutil.rmtree(then / f"rounds/{number:04d}")
    names = [row_type.table for row_type in ROW_TYPES] + ["stages", "rounds", "lineage", "bank_text"]
    names.remove("bank_texts")  # texts of later rounds lie in the copy still
    with connect(made, until=3) as pinned, connect(then) as copy:
        for name in names:
            ordered = f'SELECT * FROM "{name}" ORDER BY ALL'
            assert pinned.execute(ordered).fetchall() == copy.execute(ordered).fetchall(), name
    held = "SELECT DISTINCT content_digest FROM bank ORDER BY ALL"
    assert query(made, "SELECT content_digest FROM bank_texts ORDER BY ALL", until=3) == query(then, held)
    assert query(made, "SELECT latest_round()", until=3)[1] == [(3,)]
    with pytest.raises(BadInput, match="no round 9"):
        query(made, "SELECT 1", until=9)


def test_unfinished_stages_are_not_seen(run: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run, tmp_path / "copy"))
    shutil.copytree(path / "rounds/0002/collect", path / "rounds/0002/.tmp-collect-12-3")
    shutil.copytree(path / "rounds/0002/collect", path / "rounds/0002/.parts-collect/0000")
    shutil.copytree(path / "rounds/0002", path / "damaged/1/rounds/0002")
    assert query(path, "SELECT count(*) FROM episodes") == query(run, "SELECT count(*) FROM episodes")
    assert query(path, "SELECT count(*) FROM stages") == query(run, "SELECT count(*) FROM stages")


def test_stages_and_rounds_come_from_the_manifests(run: Path) -> None:
    _, rows = query(run, "SELECT round, stages FROM rounds")
    assert rows == [(0, 3), (1, 5), (2, 7)]
    assert query(run, "SELECT DISTINCT seconds FROM stages")[1] == [(1.5,)]


@pytest.mark.slow
def test_select_forms_and_parameters_work(run: Path) -> None:
    for sql in (
        "FROM episodes",
        "SHOW TABLES",
        "DESCRIBE episodes",
        "SUMMARIZE credits",
        "WITH a AS (SELECT 1) FROM a",
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'episodes'",
        "PIVOT episodes ON guided IN (true, false) USING count(*)",
        "SELECT unnest(complete) FROM rounds UNION SELECT 'x' FROM range(3)",
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) FROM n",
        "SELECT list_transform([1, 2], lambda x: x + random()), uuid()",
    ):
        assert query(run, sql)[1]
    _, rows = query(run, "SELECT count(*) FROM episodes WHERE guided = $guided", {"guided": True})
    assert rows == [(2,)]


@pytest.mark.parametrize("sql", ["{}", "FROM ({})", "WITH wide AS ({}) FROM wide"])
def test_a_pivot_without_a_list_says_that_it_needs_one(run: Path, sql: str) -> None:
    with pytest.raises(BadInput, match="PIVOT without an IN list") as raised:
        query(run, sql.format("PIVOT success_by_condition ON condition USING any_value(success) GROUP BY round"))
    mended = str(raised.value.next_step).partition("as in: ")[2]
    assert mended in str(raised.value) and len(query(run, mended)[1]) == 3


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


def test_changes_and_entries_have_the_same_columns() -> None:
    names = [name for name, _, _ in columns_of(BankEntry) if name != "stage"]
    assert [name for name, _, _ in columns_of(BankChange) if name not in ("removed", "stage")] == names
