"""What commands share: how they take a run and settings, how they print, and the words that several of them say.

What the command line prints is plain text: a control character is shown as its escape, never sent to the terminal.
Names, texts and observations may come from someone else's file. ESC [ 2 J in one of them would clear the screen.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crl.errors import ApprovalPending, BadInput
from crl.paths import quoted, short
from crl.report.cells import seconds_text
from crl.text.unicode import UNSEEN, escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from crl.config import Experiment
    from crl.report.diff import BankDiff
    from crl.report.summary import RoundSummary
    from crl.report.terminal import Listing

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or the name of an experiment under $CRL_RUNS (./runs).")
]
AgentArgument = Annotated[
    str, typer.Argument(metavar="RUN|DIR", help="A run, its name under $CRL_RUNS, or a folder of `crl export`.")
]
RunsOption = Annotated[Path | None, typer.Option(help="Directory that holds the runs; default $CRL_RUNS or ./runs.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
_PLAIN_WIDTH = 160
"""Columns when the output goes to a file or a pipe: wide enough that no table wraps."""
Format = Literal["table", "csv", "json"]
"""How a result is printed."""
Plain = Literal["text", "json"]
"""For people, or for programs."""


def say(text: str, *, stderr: bool = False) -> None:
    """Print text as it is, with nothing that a terminal would obey."""
    print(escaped(text), file=sys.stderr if stderr else sys.stdout, flush=True)


def say_json(value: Any, indent: int | None = None) -> None:
    """Print JSON. Nothing is lost: what JSON itself leaves bare is written as JSON's own escape. Only a number that it
    does not know (NaN, infinity) is null."""
    text = json.dumps(_known(value), ensure_ascii=False, indent=indent, default=str)
    # Newlines of the indentation are no control characters here; those within strings are escaped already.
    print(UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text))


def print_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], format: Format) -> None:
    """Rows for programs: CSV with a header, or one JSON object per line."""
    if format == "json":
        for row in rows:
            say_json(dict(zip(names, row, strict=True)))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(escaped, names))
    writer.writerows([escaped(plain_cell(value)) for value in row] for row in rows)


def plain_cell(value: Any) -> str:
    """A value as one cell: nothing for None, JSON for what is nested."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else str(value)


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
            raise BadInput(f"--set {short(pair)} is not KEY=VALUE", expected="KEY=VALUE, such as --set method.seed=2")
        if parsed.get(key, value) != value:
            raise BadInput(f"--set {short(key)} is given twice, as {short(parsed[key])} and as {short(value)}")
        parsed[key] = value
    return parsed


def load(experiment: Path | str, pairs: list[str], runs: Path | None) -> Experiment:
    """An experiment's file with `--set` and `--runs`. Raises BadInput."""
    from crl.config.load import load_experiment

    overrides = parse_overrides(pairs)
    if runs is not None:
        overrides["runtime.runs"] = str(runs)
    return load_experiment(experiment, overrides)


def agree(question: str, *, yes: bool, again: str) -> None:
    """Go on only with a yes: `--yes`, or an answer at a terminal. Raises BadInput where there is neither."""
    if yes:
        return
    if sys.stdin.isatty() and sys.stdout.isatty():
        if typer.confirm(question):
            return
        found = "nothing was changed: the answer was no"
    else:
        found = "nothing was changed: this asks before it does anything, and nobody is at a terminal"
    raise BadInput(found, next_step=f"to do what is said above: {again} --yes")


def command(*words: object, options: Mapping[str, Any]) -> str:
    """A command as a user types it: options that are None or False are left out, True has no value, a list repeats."""
    typed = [str(word) for word in words]
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            typed += [] if each is None or each is False else [name] if each is True else [name, str(each)]
    return shlex.join(typed)


def console(*, stderr: bool = False) -> Console:
    """A console on standard output (or error): styled on a terminal, plain and wide elsewhere.

    What it is given is shown as it is: no markup, and control characters are escaped.
    """
    from crl.cli.consoles import PlainConsole

    made = PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _PLAIN_WIDTH
    return made


def print_listing(listing: Listing, *, paged: bool = False) -> None:
    """Print rows whole: fitted to a terminal, as wide as they are elsewhere.

    With `paged`, what is longer than the terminal goes through the pager of the environment ($PAGER).
    """
    from crl.cli.consoles import escaped_listing

    out, listing = console(), escaped_listing(listing)
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
    """Lines that move on a terminal and leave nothing behind: a description, a bar, the field `metrics`, the time."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
        TextColumn("{task.fields[metrics]}", markup=False), TimeElapsedColumn(),
        console=out, transient=True,
    )  # fmt: skip


def show_diff(diff: BankDiff) -> None:
    """Print a bank diff: its headline, then one row per change."""
    from crl.report.diff import diff_listing

    say(diff.headline())
    if diff.changes:
        print_listing(diff_listing(diff))


def say_pending(error: ApprovalPending, path: Path) -> None:
    """What a run that waits for a person ends with: nothing failed, and what to type."""
    say(f"\n{error.found}")
    say("nothing failed: every complete stage is kept, and nothing is running now. next:")
    where = shown(path)
    for command, purpose in (
        (f"crl approve {where} --show", "what would change"),
        (f"crl approve {where}", "approve it, or --reject ID, or --reject-all"),
        (f"crl resume {where}", "continue after that"),
    ):
        say(f"  {command:<{len(where) + 20}}   {purpose}")


def print_rounds(summaries: Sequence[RoundSummary]) -> None:
    """The tables of a run's rounds, and what is worth a note about them."""
    from crl.report.round_tables import remarks, round_tables

    for table in round_tables(summaries):
        say("")
        console().print(table)
    say("")
    for line in remarks(summaries):
        say(line)


def ending(where: str, ran: int, summaries: Sequence[RoundSummary]) -> list[str]:
    """How much ran, how long the run has taken, and where it is."""
    total = sum(sum(each.seconds.values()) for each in summaries)
    return [
        f"{ran} stages ran; in total, the stages of this run have taken {seconds_text(total)}",
        f"everything is in {where}/: rounds/0001/collect/*.parquet and so on, bank/, catalog.duckdb, report.html",
    ]


def an_entry(path: Path) -> str | None:
    """An entry worth looking at: the one that did best when it was used."""
    from crl.report.bank import entries_after

    try:
        entries = entries_after(path, order="credit", limit=1)
    except BadInput:
        return None
    return entries[0].entry_id if entries else None
