"""Reading chosen rows of some rounds straight from their Parquet files, for questions about few rows of a long run.

The views of `views.py` answer any question and look at every round to do so. Who knows which rounds hold the answer
asks here: only the files named are opened, and of them only the columns and row groups that are needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa

from crl.errors import RecordDamaged
from crl.records import Row, schema_of
from crl.run.directory import round_numbers
from crl.run.experiment_file import check_format
from crl.run.files import mending


class Tables:
    """The committed tables of a run, as they are when this is made. A context manager; nothing is written."""

    def __init__(self, run_path: Path, until: int | None = None) -> None:
        """Of the rounds up to `until` only, where that is given. Raises OtherFormat."""
        self.run_path = Path(run_path)
        check_format(self.run_path)
        self._connection = duckdb.connect()
        self._files: dict[str, list[tuple[int, str]]] = {}
        for round_number in round_numbers(self.run_path):
            if until is None or round_number <= until:
                for stage_path in _directories(self.run_path / "rounds" / f"{round_number:04d}"):
                    with os.scandir(stage_path) as entries:
                        for entry in entries:
                            if entry.name.endswith(".parquet"):
                                self._files.setdefault(entry.name, []).append((round_number, entry.path))

    def __enter__(self) -> Tables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def rounds(self, row_type: type[Row]) -> list[int]:
        """Rounds that hold rows of a type, in order."""
        return sorted({number for number, _ in self._listed(row_type)})

    def select(
        self,
        row_type: type[Row],
        columns: Sequence[str],
        *,
        among: Mapping[str, Iterable[str]] | None = None,
        where: str = "true",
        rounds: Iterable[int] | None = None,
    ) -> list[dict[str, Any]]:
        """Rows as dictionaries of `columns`, in the order of rounds.

        Args:
            among: values that a column may have, by column; of a list, values of which it must hold one. No row is read
                where a column may have none.
            where: a condition in SQL.
            rounds: the rounds to look at; None for all.

        Raises RecordDamaged where a file cannot be read.
        """
        wanted = None if rounds is None else set(rounds)
        files = [file for number, file in self._listed(row_type) if wanted is None or number in wanted]
        values = {name: list(dict.fromkeys(listed)) for name, listed in (among or {}).items()}
        if not files or not all(values.values()):
            return []
        conditions = [f"({where})"]
        for name, listed in values.items():
            # A relation and not a list of constants: there may be as many as a bank has entries.
            self._connection.register(f"among_{name}", pa.table({"value": pa.array(listed, pa.string())}))
            if pa.types.is_list(schema_of(row_type).field(name).type):
                conditions.append(f'list_has_any("{name}", (SELECT list(value) FROM among_{name}))')
            else:
                conditions.append(f'"{name}" IN (SELECT value FROM among_{name})')
        selected = ", ".join(f'"{name}"' for name in columns)
        # DuckDB keeps no order of itself where `among` holds more values than there are rows.
        order = "ORDER BY file_index, file_row_number"
        read = "read_parquet($files, hive_partitioning = false)"  # a folder `round=7` says nothing about rows
        sql = f"SELECT {selected} FROM {read} WHERE {' AND '.join(conditions)} {order}"
        try:
            rows = self._connection.execute(sql, {"files": [_literally(file) for file in files]}).fetchall()
        except duckdb.Error as error:
            raise RecordDamaged(
                f"table {row_type.table} cannot be read: {str(error).splitlines()[0]}",
                expected="Parquet files as their manifests say",
                where=str(self.run_path),
                next_step=mending(self.run_path),
            ) from error
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _listed(self, row_type: type[Row]) -> list[tuple[int, str]]:
        return sorted(self._files.get(f"{row_type.table}.parquet", []))


def _directories(path: Path) -> list[str]:
    """The directories in one; what an attempt has not committed starts with a dot."""
    with os.scandir(path) as entries:
        return sorted(each.path for each in entries if each.is_dir() and not each.name.startswith("."))


def _literally(path: str) -> str:
    """A path in which DuckDB expands nothing."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
