"""`crl sql`, `crl catalog` and `crl report`: a run in SQL, and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import Format, RunArgument, plain_cell, print_listing, print_rows, say, shown
from crl.errors import BadInput
from crl.paths import possible_path
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.report.terminal import Listing

_MOST_ROWS = 10_000
_MOST_CHARACTERS = 5_000_000
"""Of a table: its columns are as wide as the longest cell, so all of it is held, blanks too."""
_MOST_SECONDS = 1_000_000
_MOST_GIGABYTES = 100_000
"""More than any query; neither a timer nor the system takes a number without end."""
SecondsOption = Annotated[
    float, typer.Option(min=0.1, max=_MOST_SECONDS, metavar="N", help="Seconds that the query may take.")
]
MemoryOption = Annotated[
    float, typer.Option(min=0.1, max=_MOST_GIGABYTES, metavar="GB", help="Memory that it may take.")
]


def sql(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN SQL",
            help="Runs, as elsewhere, then one SELECT; `SHOW TABLES` lists the views. Of several runs, all have a "
            "column `run`.",
        ),
    ],
    format: Annotated[Format, typer.Option(help="How to print the rows.")] = "table",
    round: Annotated[int | None, typer.Option(help="Everything as it was after this round.")] = None,
    seconds: SecondsOption = 300,
    memory: MemoryOption = 4,
) -> None:
    """Query runs in SQL. Read-only; nothing outside the runs can be read. docs/queries.md has examples.

    The whole query sees one state of a run, whatever is published meanwhile; latest_round() is its newest bank. It has
    a process of its own, which ends with the limits.
    """
    from crl.report.asked import asked

    if len(run) < 2:
        raise BadInput(
            "`crl sql` needs a run and a query",
            expected='crl sql RUN "SELECT …"',
            next_step="name the run, then put the query between quotes",
        )
    *runs, query = run
    places = [find_run(each) for each in runs]
    with asked(places, query, until=round, seconds=seconds, gigabytes=memory) as (names, batches):
        rows = (row for batch in batches for row in batch)
        if format != "table":
            print_rows(names if format == "csv" else _distinct(names), rows, format)
            return
        first, more = _first(rows)
    print_listing(_listing(names, first), paged=True)
    told = f"{len(first):,} row{'' if len(first) == 1 else 's'}"
    say(f"the first {told}; --format csv or json writes all" if more else told)


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


def _first(rows: Iterable[Sequence[Any]]) -> tuple[list[Sequence[Any]], bool]:
    """The rows that a table holds, at least one, and whether there are more."""
    first: list[Sequence[Any]] = []
    widths: list[int] = []
    height = 0
    for row in rows:
        cells = [plain_cell(value).split("\n") for value in row]
        widths = [max(wide, *map(len, lines)) for wide, lines in zip(widths or [0] * len(cells), cells, strict=True)]
        height += max(map(len, cells))
        if len(first) == _MOST_ROWS or (first and height * sum(widths) > _MOST_CHARACTERS):
            return first, True
        first.append(row)
    return first, False


def _listing(names: list[str], rows: Sequence[Sequence[Any]]) -> Listing:
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
