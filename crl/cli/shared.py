"""What commands share: how they take a run and settings, how they print, and the words that several of them say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.errors import ApprovalPending, BadInput
from crl.paths import quoted, short
from crl.report.durations import seconds_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from crl.report.diff import BankDiff
    from crl.report.listing import Listing
    from crl.report.summary import RoundSummary

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or the name of an experiment under $CRL_RUNS (./runs).")
]
_PLAIN_WIDTH = 160
"""Columns when the output goes to a file or a pipe: wide enough that no table wraps."""


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    csv = "csv"
    json = "json"


class Plain(StrEnum):
    """For people, or for programs."""

    text = "text"
    json = "json"


def shown(path: Path) -> str:
    """A path as a user would type it: relative to the working directory when it is below it."""
    absolute = path.absolute()
    here = Path.cwd()
    return quoted(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """`method.seed=2` to {"method.seed": "2"}; the value is YAML and is read later. Raises BadInput."""
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise BadInput(f"--set {short(pair)} sets nothing", expected="KEY=VALUE, such as --set method.seed=2")
        parsed[key] = value
    return parsed


def console(*, stderr: bool = False) -> Console:
    """A console on standard output (or error): styled on a terminal, plain and wide elsewhere.

    What it is given is shown as it is: no markup, and control characters are escaped.
    """
    from crl.cli.consoles import PlainConsole

    made = PlainConsole(stderr=stderr, highlight=False, soft_wrap=False, markup=False, emoji=False)
    return (
        made
        if made.is_terminal
        else PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=_PLAIN_WIDTH)
    )


def print_listing(out: Console, listing: Listing, *, paged: bool = False) -> None:
    """Print rows whole: fitted to a terminal, as wide as they are elsewhere.

    With `paged`, what is longer than the terminal goes through the pager of the environment ($PAGER).
    """
    from crl.cli.consoles import escaped_listing

    listing = escaped_listing(listing)
    if not out.is_terminal:
        out.width = max(out.width, listing.natural_width())
        out.print(listing.rendered(None), soft_wrap=True)
        return
    shown = listing.rendered(out.width)
    if not paged or len(out.render_lines(shown, pad=False)) < out.height:
        out.print(shown, soft_wrap=True)
        return
    os.environ.setdefault("LESS", "FRX")  # as git: colors, and nothing is cleared at the end
    with out.pager(styles=True):
        out.print(shown, soft_wrap=True)


def progress_lines(out: Console) -> Progress:
    """Lines that move on a terminal and leave nothing behind: a description, a bar, the field `figures`, the time."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
        TextColumn("{task.fields[figures]}", markup=False), TimeElapsedColumn(),
        console=out, transient=True,
    )  # fmt: skip


def show_diff(diff: BankDiff) -> None:
    """Print a bank diff: its headline, then one row per change."""
    from crl.report.diff import diff_listing

    out = console()
    out.print(diff.headline(), soft_wrap=True)
    if diff.changes:
        print_listing(out, diff_listing(diff))


def say_pending(error: ApprovalPending, path: Path) -> None:
    """What a run that waits for a person ends with: nothing failed, and what to type."""
    out = console()
    out.print(f"\n{error.found}", soft_wrap=True)
    out.print("nothing failed: every complete stage is kept, and nothing is running now. next:")
    where = shown(path)
    for command, purpose in (
        (f"crl approve {where} --show", "what would change"),
        (f"crl approve {where}", "approve it, or --reject ID, or --reject-all"),
        (f"crl resume {where}", "continue after that"),
    ):
        out.print(f"  {command:<{len(where) + 20}}   {purpose}", soft_wrap=True)


def print_rounds(out: Console, summaries: Sequence[RoundSummary]) -> None:
    """The tables of a run's rounds, and what is worth a note about them."""
    from crl.report.round_tables import notes, round_tables

    for table in round_tables(summaries):
        out.print()
        out.print(table)
    out.print()
    for line in notes(summaries):
        out.print(line, soft_wrap=True)


def ending(where: str, ran: int, summaries: Sequence[RoundSummary]) -> list[str]:
    """How much ran, how long the run has taken, and where it is."""
    total = sum(sum(each.seconds.values()) for each in summaries)
    return [
        f"{ran} stages ran; in total, the stages of this run have taken {seconds_text(total)}",
        f"everything is in {where}/: rounds/0001/collect/*.parquet and so on, bank/, catalog.duckdb, report.html",
    ]


def an_entry(path: Path) -> str | None:
    """An entry worth looking at: the one that did best when it was used."""
    from crl.report.bank import snapshot
    from crl.report.sorting import Sort

    try:
        entries = snapshot(path, sort=Sort.credit, limit=1).entries
    except BadInput:
        return None
    return entries[0].entry_id if entries else None
