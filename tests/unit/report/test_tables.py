"""Chosen rows of some rounds come in the order of rounds and rows, however many threads read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from crl.records import BankEvent, table_of
from crl.report.tables import Tables

SIZES = (10, 20_000, 10)
"""Rows of the rounds: a thread is done with the last before another one is with the second."""


def event(number: int, index: int) -> BankEvent:
    kind = "rejected" if index % 4 == 3 else "add"
    return BankEvent(
        event_id=f"r{number}-e{index}", round=number, kind=kind, entry_id=None if kind == "rejected" else f"e{index}",
        family="room", operation_id=f"o{index}", before_digest=None, after_digest=None, parents=[],
        reason="duplicate" if kind == "rejected" else None, repeats=None,
    )  # fmt: skip


def test_rows_come_in_the_order_of_rounds(tmp_path: Path) -> None:
    for number, size in enumerate(SIZES, 1):
        stage = tmp_path / f"rounds/{number:04d}/consolidate"
        stage.mkdir(parents=True)
        rows = table_of(BankEvent, [event(number, index) for index in range(size)])
        pq.write_table(rows, stage / "bank_events.parquet", compression="zstd")  # as the record is
    columns = ["kind", "entry_id", "round", "parents", "reason"]
    for _ in range(20):
        with Tables(tmp_path) as tables:
            found = tables.select(BankEvent, columns, where="kind IN ('add', 'update')", rounds=range(1, 4))
        assert [row["round"] for row in found] == sorted(row["round"] for row in found)
        assert len(found) == 8 + 15_000 + 8
