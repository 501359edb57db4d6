"""`crl status`, `crl verify` and `crl redo`: what a run holds, whether it is intact, and taking stages back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.commands.places import RunArgument, find_run, shown
from crl.errors import BadInput, RecordDamaged

if TYPE_CHECKING:
    from crl.run.lease import LeaseState


def status(run: RunArgument) -> None:
    """Show the rounds of a run, who owns it now, its last failure, and what to do next."""
    from crl.commands.screen import console
    from crl.report.summary import notes, round_tables, summarise
    from crl.run.journal import Journal
    from crl.run.lease import lease_state

    path = find_run(run)
    out = console()
    out.print(f"run {shown(path)}")
    summaries = summarise(path)
    for table in round_tables(summaries):
        out.print()
        out.print(table)
    out.print()
    for line in notes(summaries):
        out.print(line)
    owner = lease_state(path)
    events = list(Journal(path).read())
    for line in _standing(path, owner, events):
        out.print(line)


def verify(run: RunArgument) -> None:
    """Check every file of a run against its manifest and every manifest against the chain. Exit code 4 on problems."""
    from rich.table import Table
    from rich.text import Text

    from crl.commands.screen import console
    from crl.run.verify import verify as verify_run

    path = find_run(run)
    problems = verify_run(path)
    out = console()
    if not problems:
        out.print(f"{shown(path)} is intact: every file is what its manifest says, and every manifest fits the chain")
        return
    table = Table(box=None, header_style="bold", pad_edge=False, expand=False)
    for name in ("file", "expected", "found", "what mends it"):
        table.add_column(name, overflow="fold")
    for problem in problems:
        table.add_row(
            *(Text(str(cell or "–")) for cell in (problem.file, problem.expected, problem.found, problem.mend))
        )
    out.print(table)
    raise RecordDamaged(
        f"{len(problems)} problem{'' if len(problems) == 1 else 's'} in {shown(path)}",
        expected="files as their manifests say",
        next_step="run the command in the last column; training refuses to build on a damaged record",
    )


def redo(
    run: RunArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="ROUND/STAGE", help="The first stage to take back, such as 0007/collect.")
    ],
) -> None:
    """Set aside a stage and everything built on it, so that `crl resume` makes them again. Nothing is deleted."""
    from crl.config import Runtime
    from crl.engine.jobs import default_recipe, load_recipe
    from crl.run.directory import RunDirectory
    from crl.run.lease import Lease
    from crl.run.redo import set_aside

    path = find_run(run)
    number, stage = parse_place(start)
    method = RunDirectory.open(path).method
    recipe = load_recipe(default_recipe(), method)
    with Lease.acquire(path, seconds=Runtime().lease_seconds) as lease:
        moved = set_aside(
            path,
            number,
            stage,
            lambda due: [each.name for each in recipe.stages_of(method, due)],
            token=lease.token,
        )
    if not moved:
        print(f"nothing to set aside: {shown(path)} has no complete stage from round {number}, {stage} on")
        return
    for place in moved:
        print(f"set aside {place[0]:04d}/{place[1]}")
    print(f"make them again: crl resume {shown(path)}")


def parse_place(text: str) -> tuple[int, str]:
    """(7, "collect") from `0007/collect` or `7/collect`. Raises BadInput."""
    number, separator, stage = text.partition("/")
    if not separator or not number.isdigit() or not stage:
        raise BadInput(f"--from {text!r} names no stage", expected="ROUND/STAGE, such as 0007/collect")
    return int(number), stage


def _standing(path: Path, owner: LeaseState | None, events: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    failure = last_failure(events)
    if failure is not None:
        error = failure.get("error") or {}
        place = f"round {failure.get('round')}, stage {failure.get('stage')}"
        lines.append(f"last failure: {place} at {_time(failure)}: {error.get('found', 'unknown')}")
        if error.get("next_step"):
            lines.append(f"  what to do: {error['next_step']}")
    if owner is not None and owner.live:
        who = owner.owner
        lines.append(f"running: process {who.pid} on {who.host} since {who.since} ({who.command})")
        stage = running_stage(events)
        if stage:
            lines.append(f"  now: {stage}")
        return lines
    if owner is not None:
        lines.append(
            f"interrupted: process {owner.owner.pid} on {owner.owner.host} is gone and left the run unfinished"
        )
    lines.append(f"next: crl resume {shown(path)}    (or `crl train` with its experiment file for further rounds)")
    return lines


def last_failure(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest failed stage that was not committed afterwards."""
    failed: dict[tuple[Any, Any], dict[str, Any]] = {}
    for event in events:
        place = (event.get("round"), event.get("stage"))
        if event.get("event") == "stage_failed":
            failed.pop(place, None)
            failed[place] = event
        elif event.get("event") == "stage_committed":
            failed.pop(place, None)
    return list(failed.values())[-1] if failed else None


def running_stage(events: Sequence[dict[str, Any]]) -> str | None:
    """The stage that started last and has not ended."""
    now = None
    for event in events:
        kind = event.get("event")
        if kind == "stage_started":
            now = f"round {event.get('round')}, {event.get('stage')}, attempt {event.get('attempt', 1)}"
        elif kind in ("stage_committed", "stage_failed", "attempt_ended"):
            now = None
    return now


def _time(event: dict[str, Any]) -> str:
    try:
        return datetime.fromisoformat(str(event.get("time"))).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return "an unknown time"
