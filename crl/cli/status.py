"""`crl status`, `verify`, `mend`, `redo`: what a run holds, whether it is intact, making files and stages again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import RunArgument, YesOption, agree, print_rounds, say, shown
from crl.errors import BadInput, CrlError, RecordDamaged, RunDirectoryUnusable
from crl.paths import quoted, short
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.audit.problem import Record
    from crl.audit.redo import Plan
    from crl.audit.verify import Problem
    from crl.rounds.stage import Recipe
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
            say(f"note: its data files were not checked: crl verify {shown(path)} --data")
    notes = remarks(record)
    for remark in notes:
        say(f"note: {remark}")
    if (told := head_line(record.stages, complete)) is not None:
        say(told)
    for problem in problems:  # not a table: digests and commands have to be whole, to be compared and copied
        say(str(problem))
    if wanted is not None:
        try:
            say(f"the given head is that of round {hold_against(path, record.stages, wanted)}")
        except RecordDamaged as error:
            if not problems:  # else these come first, they may be why
                raise
            say(f"the given head does not fit: {error.found}")
    if not problems:
        more = f", with {len(notes)} note{'' if len(notes) == 1 else 's'} above" if notes else ""
        say(f"{shown(path)} is intact{more}: every file is what its manifest says, and every manifest fits the chain")
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


def mend(
    run: RunArgument,
    without: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Go on without this damaged file, which no later round reads."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Rebuild damaged files from the rest of the record. The damaged ones are kept; no round is taken back.

    Covers the bank, its texts and vectors, plans, credit, and everything derived. Exit code 4 if one is left.
    """
    from crl.audit.mend import may_follow
    from crl.audit.mend import mend as mend_record
    from crl.audit.problem import on_one_line
    from crl.audit.verify import Severity, damage, verify
    from crl.engine.services import services_here
    from crl.report.views import write_catalog
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory
    from crl.run.evaluations import EVALUATIONS
    from crl.run.lease import refuse_held

    path = find_run(run)
    directory = RunDirectory.open(path)
    recipe = recipe_in(directory)
    if without is not None:
        _go_on_without(directory, recipe, without, yes=yes)
        return
    refuse_held(path)
    problems = damage(path)
    if planned := [problem.file for problem in problems if may_follow(directory, recipe, problem)]:
        say(f"This makes {_files(len(planned))} again, from the rest of the record. No round is taken back:")
        for file in planned:
            say(f"  {on_one_line(file)}")
        say(f"The damaged ones move to {shown(path / 'damaged')}.")
        agree("Make them again?", yes=yes, again=f"crl mend {shown(path)}")
    # Lost vectors are embedded in this process. Where nothing can be made again, nothing is written.
    with services_here(directory) as services, _owned(path) if planned else nullcontext(0) as token:
        done = mend_record(directory, recipe, services, token=token, problems=problems)
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
            f"{_files(left)} of {shown(path)} could not be made again",
            next_step="run the command named `mend`, the first one first; then crl resume",
        )
    if not done.mended and not derived:
        say(f"{shown(path)}: nothing to mend")


def _files(number: int) -> str:
    return f"{number} file{'' if number == 1 else 's'}"


def _go_on_without(directory: RunDirectory, recipe: Recipe, file: str, *, yes: bool) -> None:
    from crl.audit.without import lacked, leave_out
    from crl.run.lease import refuse_held

    path = directory.path
    refuse_held(path)
    entry = lacked(directory, recipe, file)
    say(f"The run goes on without {entry.location}. No later round reads it.")
    say(f"What is left of it moves to {shown(path / 'damaged')}.")
    say(f"Tables and pages of round {entry.round} lack it until you restore it from a backup.")
    agree("Go on without it?", yes=yes, again=f"crl mend {shown(path)} --without {quoted(file)}")
    with _owned(path) as token:
        _check_unchanged(lacked(directory, recipe, file) == entry, path)
        leave_out(directory, entry, token=token)
    say(f"left out {entry.location}; crl verify {shown(path)} says so from now on")


def redo(
    run: RunArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="ROUND/STAGE", help="The first stage to take back, such as 0007/collect.")
    ],
    yes: YesOption = False,
) -> None:
    """Set aside a stage and everything built on it. `crl resume` makes them again; nothing is deleted.

    Says first what goes, how long it took, and which ways cost less.
    """
    from crl.audit.intact import LastIntact
    from crl.audit.redo import planned, set_aside
    from crl.audit.verify import damage
    from crl.rounds.recipe import recipe_in
    from crl.run.decisions import decision_path, withdraw_decision
    from crl.run.directory import RunDirectory
    from crl.run.lease import refuse_held

    path = find_run(run)
    number, stage = parse_stage_key(start)
    directory = RunDirectory.open(path)
    method = directory.method
    recipe = recipe_in(directory)
    if not directory.is_complete(number, stage):
        recipe.stage(method, number, stage)  # refuses a name that no stage of the round has

    def order(due: int) -> list[str]:
        return [each.name for each in recipe.stages_of(method, due)]

    refuse_held(path)
    plan = planned(path, number, stage, order)
    # Whoever takes this stage back wants to be asked again.
    asks = any(each.name == stage and each.waits_for is not None for each in recipe.stages_of(method, number))
    decided = asks and decision_path(path, number).exists()
    if not plan.stages and not decided:
        say(f"nothing to set aside: {shown(path)} has no complete stage from round {number}, {stage} on")
        return
    for line in _what_goes(path, plan):
        say(line)
    if decided:
        say(f"The decision about round {number} goes as well: crl approve asks again.")
    problems = damage(path, from_rows=partial(recipe.from_rows, method), last=LastIntact(path))
    for line in [*_what_stays(plan, problems), *_cheaper(directory, recipe, number, stage, problems)]:
        say(line)
    agree("Take them back?", yes=yes, again=f"crl redo {shown(path)} --from {quoted(start)}")
    withdrawn = None
    with _owned(path) as token:
        _check_unchanged(planned(path, number, stage, order) == plan, path)
        moved = set_aside(path, number, stage, order, token=token)
        if asks:
            withdrawn = withdraw_decision(path, number)
    if withdrawn is not None:
        say(f"set aside the decision about round {number}: crl approve {shown(path)} asks again")
    for place in moved:
        say(f"set aside {place[0]:04d}/{place[1]}")
    say(f"make them again: crl resume {shown(path)}")


@contextlib.contextmanager
def _owned(path: Path) -> Iterator[int]:
    """The token of an attempt of this process: taken after the last question, so that a refusal changes no file."""
    from crl.config import Runtime
    from crl.run.lease import Lease

    with Lease.acquire(path, seconds=Runtime().lease_seconds) as lease:
        yield lease.token


def _check_unchanged(unchanged: bool, path: Path) -> None:
    """Raise BadInput where what was agreed to is not what would be done now."""
    if not unchanged:
        raise BadInput(
            f"{shown(path)} has changed since it was shown; nothing was done", next_step="type the command again"
        )


def _what_goes(path: Path, plan: Plan) -> list[str]:
    """What is taken back, and what it costs."""
    from crl.report.cells import seconds_text
    from crl.run.manifest import key_of

    if not plan.stages:
        return []
    first, last = plan.stages[0], plan.stages[-1]
    rounds = f"round {first[0]}" if first[0] == last[0] else f"rounds {first[0]} to {last[0]}"
    count = f"{len(plan.stages)} stage{'' if len(plan.stages) == 1 else 's'} of {rounds}"
    lines = [f"This takes back {count}, from {key_of(*first)} on. They took {seconds_text(plan.seconds)}."]
    if plan.before is not None:
        lines.append(
            f"It begins with {key_of(*plan.before)}: to make {key_of(*plan.start)} again takes a checkpoint that "
            "retention deleted."
        )
    return [*lines, f"They move to {shown(path / 'damaged')}; nothing is deleted, and `crl resume` makes them again."]


def _what_stays(plan: Plan, problems: Sequence[Problem]) -> list[str]:
    """Damage that taking these stages back does not mend."""
    from crl.audit.problem import on_one_line

    goes = {*plan.stages, *plan.gone}
    stays = [each for each in problems if each.round is None or (each.round, each.stage) not in goes]
    lines = [f"    {on_one_line(each.file)}   mend: {each.mend}" for each in stays[:_MOST_SHOWN]]
    lines += [f"    and {len(stays) - _MOST_SHOWN} more"] if len(stays) > _MOST_SHOWN else []
    return ["This damage stays, and the run does not go on until it is mended:", *lines] if stays else []


def _cheaper(
    directory: RunDirectory, recipe: Recipe, number: int, stage: str, problems: Sequence[Problem]
) -> list[str]:
    """Ways that keep more of the run, the cheapest first."""
    from crl.audit.problem import on_one_line
    from crl.audit.without import why_needed
    from crl.config import Experiment
    from crl.rounds.fork import check_fork

    path, lines = directory.path, list[str]()
    where = shown(path)
    here = [problem for problem in problems if (problem.round, problem.stage) == (number, stage)]
    files = [problem for problem in here if re.fullmatch("[0-9a-f]{64}", problem.expected)]
    if files:
        lines.append("- put it back from a backup, then crl verify:")
        lines += [f"    {on_one_line(each.file)}   SHA-256 {each.expected}" for each in files]
    if files and all(why_needed(directory, recipe, each.file) is None for each in files):
        lines.append("- go on without it, since no later round reads it:")
        lines += [f"    crl mend {where} --without {quoted(each.file)}" for each in files]
    for newest in range(number - 1, -1, -1):
        if any(each.round is None or each.round <= newest for each in problems):
            continue
        name = f"{path.absolute().name}-again"
        try:
            check_fork(directory, newest, Experiment(name=name, method=directory.method), path.absolute().parent)
        except CrlError:
            continue
        lines += [f"- leave this run as it is, and go on from round {newest} as another one:"]
        lines += [f"    crl fork {where} --round {quoted(str(newest))} --name {quoted(name)}"]
        break
    return ["What costs less:", *lines] if lines else []


_MOST_SHOWN = 5
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
    from crl.report.state import last_failure, never_asked, running_stages, stopped, unfinished
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
    elif (stop := stopped(events)) is not None:
        lines += [str(stop.get("reason", "stopped")), f"next: {stop.get('next_step', 'crl resume')}"]
    elif missing:
        lines.append(f"unfinished: {missing}")
        lines.append(f"next: crl resume {shown(path)}{' --rounds 3' if never_asked(path, events) else ''}")
    else:
        lines.append("complete: every requested round is done")
        lines.append(f"next, for more rounds: crl resume {shown(path)} --rounds 3")
    return lines


def _time(event: dict[str, Any]) -> str:
    try:
        return datetime.fromisoformat(str(event.get("time"))).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return "an unknown time"
