"""Where commands print: one console for results, one for messages, plain when nobody watches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from crl.report.listing import Listing

_PLAIN_WIDTH = 160
"""Columns when the output goes to a file or a pipe: wide enough that no table wraps."""


def console(*, stderr: bool = False) -> Console:
    """A console on standard output (or error): styled on a terminal, plain and wide elsewhere."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, soft_wrap=False, markup=False, emoji=False)
    return (
        made
        if made.is_terminal
        else Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=_PLAIN_WIDTH)
    )


def print_listing(out: Console, listing: Listing, *, paged: bool = False) -> None:
    """Print rows whole: fitted to a terminal, as wide as they are elsewhere.

    With `paged`, what is longer than the terminal goes through the pager of the environment ($PAGER).
    """
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
    """Lines that move on a terminal and leave nothing behind: a description, a bar, the field `figures`, the time.

    A field `left` is a function from the seconds that a line has been there to the words about what is left.
    """
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def render(self, task: Task) -> Text:
            told = task.fields.get("left")
            return Text(told(task.elapsed or 0.0) if told is not None else "")

    return Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
        TextColumn("{task.fields[figures]}", markup=False), TimeElapsedColumn(), TimeLeft(),
        console=out, transient=True,
    )  # fmt: skip
