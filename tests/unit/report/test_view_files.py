"""Chosen rows of some rounds come in the order of rounds and rows."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crl.records import BankEvent
from crl.report.view_files import Tables
from crl.report.views import connect, query, write_catalog
from tests.marks import sampled
from tests.unit.report.builder import NEW, build_run, event, write_stage

ROUNDS, ROWS = (1, 2, 3), 3


def test_rows_come_in_order_where_more_values_are_asked_for_than_there_are_rows(tmp_path: Path) -> None:
    """DuckDB then builds the hash table of the join from the rows and reads the rows out of it."""
    listed = []
    for number in ROUNDS:
        rows = [event(number, "add", None, f"text {index}") for index in range(ROWS)]
        write_stage(tmp_path, number, "consolidate", [rows])
        listed += [(number, row.after_digest) for row in rows]
    asked = [*(digest for _, digest in listed if digest is not None), *(f"another {index}" for index in range(10_000))]
    with Tables(tmp_path) as tables:
        found = tables.select(BankEvent, ["round", "after_digest"], among={"after_digest": asked})
    assert [(row["round"], row["after_digest"]) for row in found] == listed


def test_folders_that_are_called_like_columns_change_no_value(tmp_path: Path) -> None:
    """Runs of a sweep in folders such as `round=7`, which DuckDB would take for partitions and their columns."""
    path = tmp_path / "round=7" / "kind=update"
    write_stage(path, 1, "consolidate", [[event(1, "add", None, "a text")]])
    with Tables(path) as tables:
        assert tables.select(BankEvent, ["round", "kind"]) == [{"round": 1, "kind": "add"}]
    assert query(path, "SELECT round, kind FROM bank_events")[1] == [(1, "add")]


def _drop(run: Path, text: str) -> None:
    """Files beside the record: a text for a version of the bank, tables that another stage writes and that none does,
    in the places where the views look, the cache among them."""
    digest = hashlib.sha256(NEW.encode()).hexdigest()
    segment = pa.table({"content_digest": [digest], "text": [text]})
    for folder in ("bank/segments", "cache/0 segments"):
        (run / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(segment, run / folder / f"{'0' * 64}.parquet")
    stages = run / "rounds/0001"
    shutil.copy(stages / "consolidate/bank_events.parquet", stages / "collect/bank_events.parquet")
    shutil.copytree(stages / "consolidate", run / "cache/0001/consolidate")
    pq.write_table(pa.table({"a": [1]}), stages / "collect/others.parquet")


ASKED = (
    "SELECT entry_id, version, text FROM bank_text ORDER BY ALL", "SELECT count(*) FROM bank_texts",
    "SELECT stage, count(*) FROM bank_events GROUP BY ALL ORDER BY ALL",
    "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
)  # fmt: skip


def _asked(run: Path) -> list[Any]:
    return [query(run, sql)[1] for sql in ASKED]


def _connected(run: Path) -> list[Any]:
    with connect(run) as connection:
        return [connection.execute(sql).fetchall() for sql in ASKED]


def _catalog(run: Path) -> list[Any]:
    with duckdb.connect(str(write_catalog(run)), read_only=True) as connection:
        return [connection.execute(sql).fetchall() for sql in ASKED]


def _tables(run: Path) -> list[Any]:
    with Tables(run) as tables:
        return [(row["event_id"], row["round"]) for row in tables.select(BankEvent, ["event_id", "round"])]


@pytest.mark.parametrize("read", sampled([_asked, _connected, _catalog, _tables], 4))
def test_what_lies_beside_the_record_belongs_to_no_view(tmp_path: Path, read: Callable[[Path], list[Any]]) -> None:
    run = build_run(tmp_path / "run")
    before = read(run)
    _drop(run, "Step into the trap.")
    assert read(run) == before and "trap" in str(before) + NEW
