"""`crl export`: what a run made leaves it. Here: its episodes, as data that TRL takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from crl.cli.shared import RunArgument, say, shown
from crl.cli.sql import MemoryOption, SecondsOption
from crl.errors import BadInput
from crl.paths import possible_path
from crl.run.find import find_run


def export(
    run: RunArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where to write; must not exist yet.")],
    episodes: Annotated[bool, typer.Option("--episodes", help="Write episodes, for TRL's trainers.")] = False,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Which episodes: a condition over the columns of the view `episodes`; default all."
        ),
    ] = None,
    format: Annotated[
        Literal["messages", "preference"],
        typer.Option(help="messages: conversations; preference: pairs of a win and a loss of one group."),
    ] = "messages",
    seconds: SecondsOption = 300,
    memory: MemoryOption = 4,
) -> None:
    """Write what a run made to a folder, for others to use."""
    if not episodes:
        raise BadInput("nothing is asked for", expected="--episodes", where="crl export")
    export_episodes(find_run(run), to, format, where, seconds, memory)


def export_episodes(
    run: Path, to: Path, format: Literal["messages", "preference"], where: str | None, seconds: float, memory: float
) -> None:
    """Write episodes, and say how many and what was left out."""
    if possible_path(to, "--to").exists():
        raise BadInput(f"{to} already exists", expected="a folder that does not exist yet")
    from crl.serve.episodes import CARD, PROVENANCE, ROWS, write_episodes

    written = write_episodes(run, to, format, where, seconds=seconds, gigabytes=memory)
    say(f"{written.rows} {'pairs' if format == 'preference' else 'conversations'} of {written.episodes} episodes")
    for reason, count in written.left_out.items():
        say(f"  left out: {count} ({reason})")
    say(f"  {shown(to / ROWS)}")
    say(f"  {shown(to / PROVENANCE)}: the record, the filter, the SHA-256 of the rows")
    say(f"  {shown(to / CARD)}: how TRL takes them")
