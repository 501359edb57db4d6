"""`crl sql`, `crl catalog` and `crl report`: a run in SQL, and as a page."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import Format, RunArgument, plain_cell, print_listing, print_rows, say, shown
from crl.paths import possible_path
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.report.terminal import Listing


def sql(
    run: RunArgument,
    query: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; `SHOW TABLES` lists the views.")],
    format: Annotated[Format, typer.Option(help="How to print the rows.")] = "table",
    round: Annotated[int | None, typer.Option(help="Everything as it was after this round.")] = None,
) -> None:
    """Query a run in SQL. Read-only; nothing outside the run can be read. docs/queries.md has examples.

    The whole query sees one state of the run, whatever is published meanwhile; latest_round() is its newest bank.
    """
    from crl.report.views import query as run_query

    names, rows = run_query(find_run(run), query, until=round)
    if format != "table":
        print_rows(names if format == "csv" else _distinct(names), rows, format)
        return
    print_listing(_listing(names, rows), paged=True)
    say(f"{len(rows)} row{'' if len(rows) == 1 else 's'}")


def catalog(run: RunArgument) -> None:
    """Rewrite catalog.duckdb, for DuckDB 1.0 and later. Views over the run; needed after moving or copying it."""
    from crl.report.views import write_catalog

    path = write_catalog(find_run(run))
    say(f"{shown(path)}: views only, the data stay in the Parquet files")


def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it here instead of <run>/report.html.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=0, metavar="N", help="How many episodes can be replayed.")] = 200,
) -> None:
    """Write report.html: the run as one page. Curves, rounds, play, bank, health, games to replay; it needs no
    network."""
    from crl.report.page import write_report

    directory = find_run(run)
    if out is not None:
        possible_path(out, "--out")
    path = write_report(directory, out, episodes=episodes)
    say(f"{shown(path)}: open it in a browser")


def _distinct(names: list[str]) -> list[str]:
    """The names with a number behind each that is there before: round, round_1. An object has no name twice."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        found.append(name if name not in found else next(each for each in numbered if each not in {*names, *found}))
    return found


def _listing(names: list[str], rows: list[tuple[Any, ...]]) -> Listing:
    """The rows of a result for people: numbers to four digits; columns with spaces in them may wrap."""
    from crl.report.terminal import Listing

    cells = [[f"{value:.4g}" if isinstance(value, float) else plain_cell(value) for value in row] for row in rows]
    numbers = {
        name
        for place, name in enumerate(names)
        if rows and all(isinstance(row[place], int | float | None) for row in rows)
    }
    words = {name for place, name in enumerate(names) if any(" " in row[place] for row in cells)}
    return Listing(names, cells, words=words, right=numbers)
