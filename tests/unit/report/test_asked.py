"""Queries in a process of their own: limits hold, rows come one after the other, several runs stand side by side."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.made_run import Size, make
from crl.errors import BadInput
from crl.report.asked import asked
from crl.report.views import answering, connect, query, write_catalog
from tests.processes import PATIENCE_SECONDS
from tests.tiny_run import crl_here
from tests.unit.report.builder import episode, write_stage

ENDLESS = "SELECT list_sort(range(2000000000))[1]"
"""One call in C: DuckDB cannot interrupt it, and does not count its memory."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    one = make(place / "one", 2, Size(entries=8, changes=4, groups=4))
    two = make(place / "two", 3, Size(entries=6, changes=4, groups=4))
    return [one.rename(place / "it's one"), two.rename(place / "two-2")]


def rows(runs: list[Path], sql: str, *, seconds: float = PATIENCE_SECONDS, gigabytes: float = 2) -> list[list[object]]:
    with asked(runs, sql, seconds=seconds, gigabytes=gigabytes) as (_, batches):
        return [row for batch in batches for row in batch]


def test_rows_come_as_they_are_made_and_nobody_holds_them_all(runs: list[Path]) -> None:
    before = psutil.Process().memory_info().rss
    sql = "SELECT range AS n, repeat('x', 1000) AS text FROM range(100_000_000)"
    with asked(runs[:1], sql, seconds=PATIENCE_SECONDS, gigabytes=1) as (names, batches):
        first = list(islice((row for batch in batches for row in batch), 5000))
        (child,) = (each for each in psutil.Process().children() if "crl.report.asked" in each.cmdline())
    assert names == ["n", "text"] and [row[0] for row in first] == list(range(5000))
    assert not child.is_running(), "who has enough ends the query"
    assert psutil.Process().memory_info().rss - before < 200 * 10**6


def test_a_query_ends_when_its_time_is_over(runs: list[Path]) -> None:
    began = time.monotonic()
    little = "range(1_000_000)"  # no memory to speak of, and as good as no end
    with pytest.raises(BadInput, match="longer than 1 s"):
        rows(runs[:1], f"SELECT count(*) FROM {little} a, {little} b, {little} c WHERE hash(a, b, c) = 1", seconds=1)
    assert time.monotonic() - began < PATIENCE_SECONDS


@pytest.mark.slow
def test_a_query_takes_no_more_memory_than_it_may(runs: list[Path]) -> None:
    for sql in (ENDLESS, "SELECT count(*) FROM (SELECT DISTINCT range AS n FROM range(300_000_000))"):
        with pytest.raises(BadInput, match="memory"):
            rows(runs[:1], sql, gigabytes=0.5)


@pytest.mark.slow
def test_a_query_ends_with_whoever_asked(runs: list[Path]) -> None:
    script = (
        "from pathlib import Path; from crl.report.asked import asked; import sys\n"
        f"with asked([Path(sys.argv[1])], {ENDLESS!r}, seconds=600, gigabytes=4) as (names, batches): list(batches)"
    )
    asker = subprocess.Popen([sys.executable, "-c", script, str(runs[0])])
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (children := psutil.Process(asker.pid).children()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        asker.kill()
        asker.wait()
    psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert not any(child.is_running() for child in children)


@pytest.mark.slow
def test_what_is_refused_is_said_as_ever(runs: list[Path]) -> None:
    for sql in ("DROP VIEW episodes", "SELECT * FROM read_csv('/etc/passwd')", "SELECT nothing FROM episodes"):
        with pytest.raises(BadInput) as here:
            query(runs[0], sql)
        with pytest.raises(BadInput) as there:
            rows(runs[:1], sql)
        assert str(there.value) == str(here.value)


def side_by_side(runs: list[Path], sql: str) -> list[tuple[object, ...]]:
    with answering(runs, sql) as (_, batches):
        return [row for batch in batches for row in batch]


@pytest.mark.slow
def test_several_runs_have_a_column_that_tells_them_apart(runs: list[Path]) -> None:
    for name in ("episodes", "bank", "success_by_condition", "bank_uses", "lineage", "stages"):
        alone = [(run.name, query(run, f"SELECT count(*) FROM {name}")[1][0][0]) for run in runs]
        found = side_by_side(runs, f"SELECT run, count(*) FROM {name} GROUP BY run ORDER BY run")
        assert found == [each for each in alone if each[1]] and found, name
    assert side_by_side(runs, "SELECT latest_round()") == [(2,)], "the newest bank that all of them have"
    for macro in ("bank_at(2)", "bank_diff(1, 2)"):
        alone = [(run.name, len(query(run, f"FROM {macro}")[1])) for run in runs]
        assert side_by_side(runs, f"SELECT run, count(*) FROM {macro} GROUP BY run ORDER BY run") == alone
    with pytest.raises(BadInput, match="there is no bank after round 3"):
        side_by_side(runs, "FROM bank_at(3)")
    with pytest.raises(BadInput, match="two of the runs"):
        side_by_side([runs[0], runs[0]], "FROM episodes")


@pytest.mark.slow
def test_a_run_without_a_bank_stands_beside_one_that_has_a_bank(runs: list[Path], tmp_path: Path) -> None:
    without = tmp_path / "without"
    write_stage(without, 1, "collect", [[episode(1, 0, guided=False, success=True)]])
    for macro in ("bank_at(1)", "bank_at(latest_round())", "bank_diff(1, 2)"):
        alone = [(runs[0].name, len(query(runs[0], f"FROM {macro}")[1]))]
        assert side_by_side([without, runs[0]], f"SELECT run, count(*) FROM {macro} GROUP BY run") == alone
    with pytest.raises(BadInput, match="there are those after rounds 0 to 2"):
        side_by_side([without, runs[0]], "FROM bank_at(3)")
    other = Path(shutil.copytree(without, tmp_path / "other"))
    with pytest.raises(BadInput, match="the run has none"):
        side_by_side([without, other], "FROM bank_at(1)")


@pytest.mark.slow
def test_runs_side_by_side_are_as_closed_as_one(runs: list[Path]) -> None:
    for sql in (
        f"FROM read_text('{runs[0]}/experiment.yaml')",
        "ATTACH 'x'",
        "SELECT current_setting('allowed_paths')",
    ):
        with pytest.raises(BadInput):
            side_by_side(runs, sql)


@pytest.mark.slow
def test_macros_of_a_catalog_answer_under_another_name(runs: list[Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    catalog = write_catalog(run)
    with duckdb.connect() as client, connect(run) as here:
        client.execute(f"ATTACH '{catalog}' AS \"another name\" (READ_ONLY)")
        for macro in ("bank_at(2)", "bank_diff(1, 2)"):
            ours = here.execute(f"FROM {macro} ORDER BY ALL").fetchall()
            assert client.execute(f'FROM "another name".{macro} ORDER BY ALL').fetchall() == ours and ours
        assert client.execute('SELECT "another name".has_bank(1)').fetchall() == [(True,)]
        with pytest.raises(duckdb.Error, match="there is no bank after round 9"):
            client.execute('FROM "another name".bank_at(9)').fetchall()


def test_uses_and_credit_stand_beside_the_bank_of_every_round(runs: list[Path]) -> None:
    found = query(runs[1], "SELECT * FROM bank_uses ORDER BY round, entry_id")[1]
    assert len(found) == query(runs[1], "SELECT count(*) FROM bank")[1][0][0]
    counted = "SELECT count(*) FROM credits AS c WHERE c.round <= b.round AND c.entry_id = b.entry_id AND "
    sql = (
        f"SELECT count(*) FROM bank_uses AS b WHERE uses <> ({counted}c.content_digest = b.content_digest) "
        "AND round IN (SELECT round FROM entry_scores)"
    )
    assert query(runs[1], sql)[1] == [(0,)]


def test_vectors_are_a_view(runs: list[Path]) -> None:
    found = query(runs[0], "SELECT content_digest, embedding FROM bank_vectors ORDER BY ALL")[1]
    texts = query(runs[0], "SELECT DISTINCT content_digest FROM bank_texts ORDER BY ALL")[1]
    assert [(digest,) for digest, _ in found] == texts
    assert all(abs(sum(value**2 for value in vector) - 1) < 1e-4 for _, vector in found)


def test_vectors_are_in_a_catalog_and_a_file_beside_them_is_not(runs: list[Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    expected = query(run, "SELECT content_digest, embedding FROM bank_vectors ORDER BY ALL")[1]
    with duckdb.connect(str(write_catalog(run)), read_only=True) as client:
        assert client.execute("FROM bank_vectors ORDER BY ALL").fetchall() == expected
        stored = next((run / "bank" / "embeddings").glob("*.parquet"))
        table = pq.read_table(stored)
        other = pa.array(["f" * 64] * table.num_rows)
        pq.write_table(table.set_column(0, "content_digest", other), stored.with_name(f"{'0' * 64}.parquet"))
        assert client.execute("FROM bank_vectors ORDER BY ALL").fetchall() == expected
        assert client.execute("FROM bank_texts ORDER BY ALL").fetchall()
        shutil.rmtree(stored.parent)
        assert client.execute("FROM bank_vectors").fetchall() == [], "as of a run without a bank"


@pytest.mark.slow
def test_a_table_of_what_does_not_end_shows_its_first_rows(runs: list[Path]) -> None:
    """However wide and high they are: what is held is bounded."""
    sql = "SELECT range, repeat('x', 9000) || repeat(chr(10), 99) FROM range(10_000_000_000)"
    said = crl_here(runs[0].parent, "sql", runs[0], sql).stdout
    assert len(said) < 20_000_000
    assert re.fullmatch(r"the first [1-9]\d* rows; --format csv or json writes all", said.splitlines()[-1])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT current_setting('memory_limit')",
        "SELECT 1 WHERE current_setting('allowed_paths') IS NOT NULL",
        "SELECT list_transform(['threads'], lambda x: current_setting('threads'))",
        "SELECT pg_catalog.current_setting('threads')",
        "SELECT " + "(SELECT " * 400 + "1" + ")" * 400,
        "SELECT " + "[" * 3000 + "]" * 3000,
        "SELECT " + "-" * 20_000 + "1",
    ],
)
def test_settings_and_endless_nesting_are_refused_in_words(runs: list[Path], sql: str) -> None:
    with pytest.raises(BadInput):
        query(runs[0], sql)
