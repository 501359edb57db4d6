"""`crl report`: the page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crl.cli.shared import RunArgument, shown
from crl.run.find import find_run


def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it here instead of <run>/report.html.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=0, metavar="N", help="How many episodes can be replayed.")] = 200,
) -> None:
    """Write report.html: the run as one page to look at. Curves, rounds, play, bank, health, games to replay; it loads
    nothing."""
    from crl.report.page import write_report

    path = write_report(find_run(run), out, episodes=episodes)
    print(f"{shown(path)}: open it in a browser")
