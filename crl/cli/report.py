"""`crl report`: the page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crl.cli.escaping import say
from crl.cli.shared import RunArgument, shown
from crl.paths import possible_path
from crl.run.find import find_run


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
