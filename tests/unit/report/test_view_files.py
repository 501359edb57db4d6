"""Chosen rows of some rounds come in the order of rounds and rows."""

from __future__ import annotations

from pathlib import Path

from crl.records import BankEvent
from crl.report.view_files import Tables
from crl.report.views import query
from tests.unit.report.builder import event, write_stage

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
