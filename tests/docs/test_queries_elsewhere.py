"""Queries of docs/queries.md on runs that the made-up one is not like."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq

from crl.records import Weights, rows_of, table_of
from crl.report.views import query
from tests.docs.test_queries import QUERIES
from tests.unit.report.builder import build_run


def test_who_wrote_what_is_useful_where_roles_share_weights(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    for path in run.glob("rounds/*/*/weights.parquet"):  # `weights.role` is the role that owns them
        rows = rows_of(Weights, pq.read_table(path))
        owned = [dataclasses.replace(row, role="actor") for row in rows if row.role == "extractor"]
        pq.write_table(table_of(Weights, owned), path)
    assert query(run, QUERIES[12])[1] == [(0, 1, 2, 0.5, 1.0)]
