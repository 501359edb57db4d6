"""`crl status`, `verify`, `mend`, `redo`: what a run holds, whether it is intact, making files and stages again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import RunArgument, print_rounds, say, shown
from crl.errors import BadInput, RecordDamaged, RunDirectoryUnusable
from crl.paths import short
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.audit.problem import Record
    from crl.audit.verify import Problem
    from crl.run.directory import RunDirectory
    from crl.run.lease import LeaseState


def status(run: RunArgument) -> None:
    """Show a run: its rounds, owner, last failure, next step."""
    from crl.report.state import fork_lines
    from crl.report.summary import summarize
    from crl.run.directory import RunDirectory, manifests
    from crl.run.head import head_line
    from crl.run.journal import Journal
    from crl.run.lease import lease_state

    path = find_run(run)
    say(f"run {shown(path)}")
    summaries = summarize(path)
    print_rounds(summaries)
    if forks := fork_lines(path):
        say("\n".join(["forks:", *(f"  {line}" for line in forks)]))
    if (head := head_line(manifests(path), _complete(RunDirectory.open(path)))) is not None:
        say(head)
    owner = lease_state(path)
    events = list(Journal(path).read())
    for line in _status(path, owner, events):
        say(line)


def verify(
    run: RunArgument,
    head: Annotated[
        str | None,
        typer.Option(metavar="DIGEST", help="A head that `crl status` printed, now or after an earlier round."),
    ] = None,
    data: Annotated[bool, typer.Option("--data", help="Read the files that its environments play with, too.")] = False,
) -> None:
    """Check every file of a run against its manifest. The chain and the banks' digests too; exit code 4 on problems."""
    from crl.audit.data import data_problems, has_data
    from crl.audit.remarks import remarks
    from crl.audit.verify import Severity
    from crl.run.directory import RunDirectory
    from crl.run.head import checked_form, head_line, hold_against

    path = find_run(run)
    wanted = checked_form(head) if head is not None else None
    record, problems, complete = _looked_at(path)
    with contextlib.suppress(RecordDamaged, RunDirectoryUnusable):  # said among the problems
        method = RunDirectory.open(path).method
        problems += data_problems(method) if data else []
        if has_data(method) and not data:
            say(f"note: the data that it plays with was not read: crl verify {shown(path)} --data")
    for remark in remarks(record):
        say(f"note: {remark}")
    if (told := head_line(record.stages, complete)) is not None:
        say(told)
    for problem in problems:  # not a table: digests and commands have to be whole, to be compared and copied
        say(str(problem))
    if wanted is not None:
        try:
            say(f"the given head is the one after round {hold_against(path, record.stages, wanted)}")
        except RecordDamaged as error:
            if not problems:  # else these come first, they may be why
                raise
            say(f"the given head does not fit: {error.found}")
    if not problems:
        say(f"{shown(path)} is intact: every file is what its manifest says, and every manifest fits the chain")
        return
    damaged = sum(problem.severity is Severity.damaged for problem in problems)
    raise RecordDamaged(
        f"{len(problems)} problem{'' if len(problems) == 1 else 's'} in {shown(path)}, {damaged} in the record itself",
        next_step="run the commands named `mend`, the first one first"
        + ("; training refuses to build on this record until then" if damaged else ""),
    )


def _looked_at(path: Path) -> tuple[Record, list[Problem], Callable[[int], bool]]:
    """The record, its problems, and whether a round is complete."""
    from crl.audit.audit import problems_of
    from crl.audit.verify import problems_in, record_of
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory

    try:
        directory = RunDirectory.open(path)
        recipe = recipe_in(directory)
    except (RecordDamaged, RunDirectoryUnusable):
        record = record_of(path)  # without the method nobody knows which stages are due, and which publish banks
        return record, problems_in(record), lambda number: False
    record = record_of(path, from_rows=partial(recipe.from_rows, directory.method))
    return record, problems_of(directory, recipe, record), _complete(directory)


def _complete(directory: RunDirectory) -> Callable[[int], bool]:
    """Whether all that is due in a round is there: only then is there a head to tell."""
    from crl.rounds.recipe import recipe_in

    recipe = recipe_in(directory)
    return lambda number: all(
        directory.is_complete(number, stage.name) for stage in recipe.stages_of(directory.method, number)
    )


def mend(run: RunArgument) -> None:
    """Rebuild damaged files from the rest of the record. The damaged ones are kept.

    Covers the bank, its texts and vectors, plans, credit, and everything derived. Exit code 4 if one is left.
    """
    from crl.audit.mend import mend as mend_record
    from crl.audit.verify import Severity, verify
    from crl.config import Runtime
    from crl.engine.services import services_here
    from crl.report.views import write_catalog
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory
    from crl.run.evaluations import EVALUATIONS
    from crl.run.lease import Lease

    path = find_run(run)
    directory = RunDirectory.open(path)
    recipe = recipe_in(directory)
    # Lost vectors are embedded in this process.
    with services_here(directory) as services, Lease.acquire(path, seconds=Runtime().lease_seconds) as lease:
        done = mend_record(directory, recipe, services, token=lease.token)
    for name in done.mended:
        say(f"mended {name}")
    if done.kept:
        say(f"the damaged files are kept in {shown(path / 'damaged')}")
    found = [problem for problem in verify(path) if problem.severity is Severity.derived]
    played = [problem for problem in found if problem.file.startswith(f"{EVALUATIONS}/")]  # by a model: for good
    derived = [problem for problem in found if problem not in played]
    if derived:
        write_catalog(path)
        for problem in derived:
            say(f"rebuilt, or to be rebuilt on next use: {problem.file}")
    for problem, error in done.left:
        say(f"{problem.file} cannot be made again: {error.found}\n  mend     {problem.redo or problem.mend}")
    for problem in played:
        say(f"{problem.found}: it cannot be made again\n  mend     {problem.mend}")
    if left := len(done.left) + len(played):
        raise RecordDamaged(
            f"{left} file{'' if left == 1 else 's'} of {shown(path)} could not be made again",
            next_step="run the command named `mend`, the first one first; then crl resume",
        )
    if not done.mended and not derived:
        say(f"{shown(path)}: nothing to mend")


def redo(
    run: RunArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="ROUND/STAGE", help="The first stage to take back, such as 0007/collect.")
    ],
) -> None:
    """Set aside a stage and everything built on it. `crl resume` makes them again; nothing is deleted."""
    from crl.audit.redo import set_aside
    from crl.config import Runtime
    from crl.rounds.recipe import recipe_in
    from crl.run.decisions import withdraw_decision
    from crl.run.directory import RunDirectory
    from crl.run.lease import Lease

    path = find_run(run)
    number, stage = parse_stage_key(start)
    directory = RunDirectory.open(path)
    method = directory.method
    recipe = recipe_in(directory)
    if not directory.is_complete(number, stage):
        recipe.stage(method, number, stage)  # refuses a name that no stage of the round has
    with Lease.acquire(path, seconds=Runtime().lease_seconds) as lease:
        stages_of = partial(recipe.stages_of, method)
        moved = set_aside(path, number, stage, lambda due: [each.name for each in stages_of(due)], token=lease.token)
        withdrawn = None
        if any(each.name == stage and each.waits_for is not None for each in stages_of(number)):
            withdrawn = withdraw_decision(path, number)  # whoever takes this stage back wants to be asked again
    if withdrawn is not None:
        say(f"set aside the decision about round {number}: crl approve {shown(path)} asks again")
    if not moved and withdrawn is None:
        say(f"nothing to set aside: {shown(path)} has no complete stage from round {number}, {stage} on")
        return
    for place in moved:
        say(f"set aside {place[0]:04d}/{place[1]}")
    say(f"make them again: crl resume {shown(path)}")


_STAGE = re.compile(r"[A-Za-z0-9][\w-]{0,99}", re.ASCII)
"""What the name of a stage looks like: it names a directory, and no other."""


def parse_stage_key(text: str) -> tuple[int, str]:
    """(7, "collect") from `0007/collect` or `7/collect`. Raises BadInput."""
    from crl.config.load import is_index

    number, separator, stage = text.partition("/")
    if not separator or not is_index(number) or not _STAGE.fullmatch(stage):
        raise BadInput(f"--from {short(text)} names no stage", expected="ROUND/STAGE, such as 0007/collect")
    return int(number), stage


def _status(path: Path, owner: LeaseState | None, events: Sequence[dict[str, Any]]) -> list[str]:
    from crl.report.state import last_failure, never_asked, running_stages, unfinished
    from crl.rounds.approvals import awaited

    lines = []
    failure = last_failure(events)
    if failure is not None:
        error = failure.get("error") or {}
        place = f"round {failure.get('round')}, stage {failure.get('stage')}"
        lines.append(f"last failure: {place} at {_time(failure)}: {error.get('found', 'unknown')}")
        if error.get("next_step"):
            lines.append(f"  what to do: {error['next_step']}")
    pending = awaited(path)
    if owner is not None and owner.live:
        who = owner.owner
        lines.append(f"running: process {who.pid} on {who.host} since {who.since} ({who.command})")
        now = [*([] if pending is None else [pending.in_words()]), *running_stages(events)]
        lines += [f"  now: {each}" for each in now]
        if pending is not None:
            lines.append(f"next: crl approve {shown(path)} --show")
        return lines
    missing = unfinished(path, events)
    if owner is not None:
        lines.append(f"interrupted: process {owner.owner.pid} on {owner.owner.host} is gone")
    if pending is not None:
        lines += [pending.in_words(), f"next: crl approve {shown(path)} --show, then crl resume {shown(path)}"]
    elif missing:
        lines.append(f"unfinished: {missing}")
        resume = f"crl resume {shown(path)}"
        lines.append(f"next: {'`crl train` with its experiment' if never_asked(path, events) else resume}")
    else:
        lines.append("complete: every requested round is done")
        lines.append(f"next, for more rounds: crl resume {shown(path)} --rounds 3, or `crl train` with its experiment")
    return lines


def _time(event: dict[str, Any]) -> str:
    try:
        return datetime.fromisoformat(str(event.get("time"))).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return "an unknown time"
