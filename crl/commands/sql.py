"""`crl sql` and `crl catalog`."""

from __future__ import annotations

import csv
import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from crl.commands.places import RunArgument, find_run, shown


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    csv = "csv"
    json = "json"


def sql(
    run: RunArgument,
    query: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; `SHOW TABLES` lists the views.")],
    format: Annotated[Format, typer.Option(help="How to print the rows.")] = Format.table,
    round: Annotated[int | None, typer.Option(help="Everything as it was after this round.")] = None,
) -> None:
    """Query a run in SQL. Read-only; nothing outside the run can be read. docs/queries.md has examples.

    The whole query sees one state of the run, whatever is published meanwhile; latest_round() is its newest bank.
    """
    from crl.report.views import query as run_query

    names, rows = run_query(find_run(run), query, until=round)
    if format is Format.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row] for row in rows)
    elif format is Format.json:
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=str))
    else:
        _print_table(names, rows)


def catalog(run: RunArgument) -> None:
    """Write catalog.duckdb anew: views over the run, for any DuckDB client. Needed after a run was moved."""
    from crl.report.views import write_catalog

    path = write_catalog(find_run(run))
    print(f"{shown(path)}: views only, the data stay in the Parquet files")


def _print_table(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from crl.commands.screen import console

    out = console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    numeric = [all(isinstance(row[index], int | float | None) for row in rows) for index in range(len(names))]
    for name, right in zip(names, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_rounded(value)) for value in row))
    out.print(table)
    out.print(f"{len(rows)} row{'' if len(rows) == 1 else 's'}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _rounded(value: Any) -> str:
    """A cell for people: csv and json keep every digit."""
    return f"{value:.4g}" if isinstance(value, float) else _cell(value)
