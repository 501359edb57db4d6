"""`crl stage`: one stage in this process, to look for a fault: under a debugger, with prints, after a change."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import RunArgument, say, shown
from crl.errors import BadInput, DataCheckFailed
from crl.paths import short
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.audit.again import Made
    from crl.rounds.stage import Recipe, Stage
    from crl.run.directory import RunDirectory

_SHOWN = 5
"""Differences that are told of a table."""
_LONGEST = 300
"""Characters of a difference, or of a row."""
_SECONDS = 5.0
"""Least time between two lines of progress."""


def stage(
    run: RunArgument,
    round: Annotated[int, typer.Argument(min=0, metavar="ROUND", help="The number of the round.")],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Its name, such as plan.")],
    rows: Annotated[int, typer.Option(min=0, max=1_000_000, help="Print so many rows of each table.")] = 0,
    into: Annotated[Path | None, typer.Option(help="A new folder for what the stage would write.")] = None,
) -> None:
    """Run one stage in this process and compare it with the record.

    The record is not changed. For a debugger: python -m pdb -m crl stage RUN ROUND STAGE. The models that the stage
    needs are loaded here.
    """
    from crl.audit.again import make
    from crl.engine.services import services_here
    from crl.rounds.recipe import recipe_in
    from crl.run.directory import RunDirectory

    path = find_run(run)
    directory = RunDirectory.open(path)
    recipe = recipe_in(directory)
    _require_runnable(directory, recipe, round, stage)
    if into is not None:
        _require_new(into, path)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="crl-stage-") as folder, services_here(directory) as services:
        files = Path(folder) if into is None else into
        services.begin(round, stage, None)
        made = make(directory, recipe, round, stage, services, directory=files, progress=_Progress(stage))
        seconds = time.monotonic() - started
        own = sorted(place.relative_to(files).as_posix() for place in files.rglob("*") if place.is_file())
        say(f"{stage} of round {round} of {shown(path)}: made again in {seconds:.1f} s; the record is not changed")
        for line in _lines(directory, round, made, files, own, rows):
            say(f"  {line}")
        if into is not None:
            _write(made, into)
            say(f"written to {shown(into)}")


class _Progress:
    """Progress, a line every few seconds."""

    def __init__(self, stage: str) -> None:
        self._stage, self._last = stage, time.monotonic()

    def __call__(self, metrics: dict[str, Any]) -> None:
        if time.monotonic() - self._last >= _SECONDS:
            self._last = time.monotonic()
            say(f"{self._stage}: {metrics['done']} of {metrics['total']}", stderr=True)


def _require_runnable(run: RunDirectory, recipe: Recipe, number: int, name: str) -> None:
    """Raise BadInput for a round or a stage that there is not, or one that cannot run alone here."""
    from crl.audit.again import missing_reads

    rounds = run.rounds()
    newest = max(rounds, default=-1)
    if number > newest + 1:
        raise BadInput(
            f"{shown(run.path)} has no round {number}",
            expected=f"a round from 0 to {newest}, or {newest + 1}, which comes next",
            next_step="`crl status RUN` lists rounds and stages",
        )
    stage: Stage = recipe.stage(run.method, number, name)  # refuses a name that no stage of the round has
    if missing := missing_reads(run, recipe, number, name):
        raise BadInput(
            f"stage {name} of round {number} reads {', '.join(missing)}, which the record does not have",
            expected="a stage whose inputs are all recorded",
            where=str(run.path),
            next_step="`crl resume` runs the stages before it; `crl status RUN` shows what is complete",
        )
    ranks = run.method.role(stage.role).deepspeed.ranks if stage.update and stage.role is not None else 1
    if ranks > 1:
        raise BadInput(
            f"stage {name} trains on {ranks} ranks together",
            expected="a stage that runs in one process",
            where=f"method.roles.{stage.role}.deepspeed.ranks",
            next_step="`crl fork` with one rank, and look at that run",
        )


def _require_new(into: Path, run_path: Path) -> None:
    if into.absolute().resolve().is_relative_to(run_path.resolve()):
        raise BadInput(f"{short(str(into))} is inside the run", expected="a folder elsewhere", where="--into")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise BadInput(f"{short(str(into))} is there already", expected="a new or an empty folder", where="--into")
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"{short(str(into))} cannot be made: {error.strerror}",
            expected="a place where a folder can be made",
            where="--into",
        ) from error


def _lines(run: RunDirectory, number: int, made: Made, files: Path, own: list[str], rows: int) -> Iterator[str]:
    """What was made, a line per table and file, and how it differs from what is recorded."""
    from crl.audit.again import differences
    from crl.checks import check_tables
    from crl.engine.targets import last_runtime
    from crl.run.files import sha256_bytes, sha256_file

    name, recorded = made.stage.name, run.is_complete(number, made.stage.name)
    digested = run.manifest(number, name).digested if recorded else None
    known = {} if digested is None else {file: each.sha256 for file, each in digested.files.items()} | digested.shared
    if not recorded:
        yield "the stage is not recorded: there is nothing to compare with"

    def compared(file: str, same: bool) -> str:
        if not recorded:
            return ""
        return ", not in the record" if file not in known else ", equal" if same else ", differs (made | recorded)"

    for row_type, table in made.tables.items():
        file, found = f"{row_type.table}.parquet", list[str]()
        if file in known:
            found = differences(row_type, table, run.read(number, name, row_type))
        yield f"{row_type.table}: {table.num_rows} rows{compared(file, not found)}"
        yield from (f"  {_cut(line)}" for line in found[:_SHOWN])
        if len(found) > _SHOWN:
            yield f"  and {len(found) - _SHOWN} more"
        if row_type.table == "metrics":
            yield from (f"  {row['name']} {row['value']:.6g}" for row in table.to_pylist())
        else:
            yield from (f"  {_cut(json.dumps(row, ensure_ascii=False))}" for row in table.slice(0, rows).to_pylist())
    for file in own:
        place = files / file
        yield f"{file}: {place.stat().st_size} bytes{compared(file, known.get(file) == sha256_file(place))}"
    for file, content in sorted(made.shared.items()):
        yield f"{file}: {len(content)} bytes{compared(file, known.get(file) == sha256_bytes(content))}"
    for file in sorted(known.keys() - {f"{each.table}.parquet" for each in made.tables} - {*own, *made.shared}):
        yield f"{file}: only in the record"
    try:
        own_suites = last_runtime(run.path).expectations
        check_tables(made.tables, where=f"round {number}, stage {name}", own=own_suites)
    except DataCheckFailed as error:
        yield f"a data check fails: {error.found}"


def _write(made: Made, into: Path) -> None:
    from crl.run.writer import parquet_bytes

    contents = {f"{row_type.table}.parquet": parquet_bytes(row_type, table) for row_type, table in made.tables.items()}
    for relative, content in {**contents, **made.shared}.items():
        place = into / relative
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def debugged() -> bool:
    """Whether Python's debugger runs this process: what is raised is for its user to look at, not for us to print."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "bdb":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
