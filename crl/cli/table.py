"""`crl table`: the recorded evaluations of several runs as one table, as in the paper's Table 1. It runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.escaping import say, say_json
from crl.cli.shared import console, print_listing
from crl.errors import BadInput, RecordDamaged, RunDirectoryUnusable
from crl.paths import possible_path, short
from crl.run.find import find_run, is_run

if TYPE_CHECKING:
    from crl.lab.table.build import Figure, Table
    from crl.lab.table.read import RunResults, Which


class TableFormat(StrEnum):
    """How the table is printed."""

    rich = "rich"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


class FigureName(StrEnum):
    """What the table is about, as `crl.lab.table.build.Figure`: `crl --help` does without that module."""

    success = "success"
    score = "score"
    actions = "actions"
    tokens = "tokens"


def table(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Run directories or names of experiments. NAME=RUN names its row; runs may share one."
        ),
    ],
    round: Annotated[
        str, typer.Option(metavar="last|best|N", help="The last evaluated round, the best one, or this one.")
    ] = "last",
    figure: Annotated[
        FigureName, typer.Option(help="Shown by rich, markdown and latex; csv and json have all.")
    ] = FigureName.success,
    format: Annotated[
        TableFormat, typer.Option(help="rich for a terminal; markdown, latex for text; csv, json for data.")
    ] = TableFormat.rich,
) -> None:
    """Print the recorded evaluations of several runs as one table.

    One row per method, with its bank and without; one column per task, then their average. Runs that differ only in
    their seeds are one row, with intervals over seeds. Runs that are damaged, or were never evaluated, are not in the
    table but named below it.
    """
    from crl.lab.table.build import Figure, build
    from crl.lab.table.group import grouped

    which = _which(round)
    found, problems = _read(runs, which)
    made = build(grouped(found), which, problems)
    _print(made, Figure(figure.value), format)


def _which(text: str) -> Which:
    from crl.config.load import is_index

    if text == "last" or text == "best":
        return "last" if text == "last" else "best"
    if not is_index(text):
        raise BadInput(f"--round {short(text)}", expected="last, best, or the number of a round")
    return int(text)


def _read(words: Sequence[str], which: Which) -> tuple[list[tuple[str | None, RunResults]], list[str]]:
    """The runs with the names of their rows, and why others are not among them."""
    from crl.lab.table.read import read_results

    found: list[tuple[str | None, RunResults]] = []
    problems: list[str] = []
    places: set[Path] = set()
    for label, name, path in [
        _named(word) for word in words
    ]:  # a name that is wrong is refused before anything is read
        if path is None:
            problems.append(f"not in the table: {name} is not a run")
        elif path.absolute().resolve() in places:
            problems.append(f"{name} was named twice and is in the table once")
        else:
            places.add(path.absolute().resolve())
            try:
                found.append((label, read_results(path, which)))
            except (BadInput, RecordDamaged, RunDirectoryUnusable) as error:
                problems.append(f"not in the table: {name}: {' '.join(error.found.split())}")
    if not found:
        raise BadInput("\n".join(problems), expected="a run with an evaluation", next_step="crl evaluate RUN makes one")
    return found, problems


def _named(word: str) -> tuple[str | None, str, Path | None]:
    """(name of the row, name of the run, where it is) of an argument; nowhere for a place that is no run.

    Raises BadInput for a name that means nothing at all.
    """
    label, separator, name = word.partition("=")
    if not separator or is_run(possible_path(word, "the run")):
        label, name = "", word
    elif not label.strip() or not name:
        raise BadInput(f"{short(word)} names no row or no run", expected="RUN, or NAME=RUN")
    try:
        return label.strip() or None, name, find_run(name)
    except BadInput:
        if not possible_path(name, "the run").exists():
            raise
        return None, name, None  # of `runs/*` some may be other things


def _print(made: Table, figure: Figure, format: TableFormat) -> None:
    from crl.lab.table.formats import HOW, csv_text, data, latex, listing, markdown

    if format is TableFormat.json:
        say_json(data(made), indent=1)
    elif format is TableFormat.rich:
        out = console()
        print_listing(out, listing(made, figure))
        out.print()
        for line in (HOW, *made.notes):
            out.print(line, soft_wrap=True)
    else:
        text = {
            TableFormat.markdown: lambda: markdown(made, figure),
            TableFormat.latex: lambda: latex(made, figure),
            TableFormat.csv: lambda: csv_text(made).rstrip("\n"),
        }[format]()
        say(text)
