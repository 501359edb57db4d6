"""Rows that a data check refused: kept in the cache until the stage is committed, so that a person can look at them.

    cache/refused-0007-collect/<table>.parquet

Not part of the record: nothing reads them but the Data Docs (`crl checks docs`), and deleting them loses nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from crl.errors import CrlError
from crl.records import ROW_TYPE_BY_TABLE, Row
from crl.run.cache import CACHE, cached, is_usable
from crl.run.files import remove

_PREFIX = "refused-"


def keep_refused(run_path: Path, round_number: int, stage: str, tables: Mapping[type[Row], pa.Table]) -> None:
    """Keep the tables of a stage that was not committed, in place of those of an earlier attempt.

    Where they cannot be written they are not kept: what the check found is what the person needs to know.
    """

    def write(directory: Path) -> None:
        for row_type, table in tables.items():
            pq.write_table(table, directory / f"{row_type.table}.parquet")

    discard_refused(run_path, round_number, stage)
    with contextlib.suppress(CrlError, OSError):
        cached(run_path, _key(round_number, stage), write)


def discard_refused(run_path: Path, round_number: int, stage: str) -> None:
    """Delete what was kept of a stage; it has been committed, or tried again."""
    remove(run_path / CACHE / _key(round_number, stage))


def refused(
    run_path: Path, row_type_of: Callable[[str], type[Row] | None] = ROW_TYPE_BY_TABLE.get
) -> dict[tuple[int, str], dict[type[Row], pa.Table]]:
    """The tables that were refused, by round and stage; without those whose row type `row_type_of` does not know."""
    found = {}
    for directory in sorted((run_path / CACHE).glob(f"{_PREFIX}[0-9]*")):
        number, _, stage = directory.name.removeprefix(_PREFIX).partition("-")
        if not number.isdecimal() or not is_usable(run_path, directory):
            continue
        types = [(row_type_of(path.stem), path) for path in sorted(directory.glob("*.parquet"))]
        found[int(number), stage] = {
            row_type: pq.ParquetFile(path).read() for row_type, path in types if row_type is not None
        }
    return found


def _key(round_number: int, stage: str) -> str:
    return f"{_PREFIX}{round_number:04d}-{stage}"
