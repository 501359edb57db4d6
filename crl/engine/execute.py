"""Runs one stage against the record: read, run, check, commit. The engine's worker and in-process tests call the same.

A stage that is complete is skipped. A stage in parts runs the parts that are missing, then becomes their concatenation
in part order, so it has the same digest however its parts were spread; one of a single part that nobody ran yet is
written as a whole at once. Nothing is committed unless the data checks of
every table pass. Files land in `rounds/<round>/<stage>/`, through `crl.run` only.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crl.config import Method
from crl.config.models import WAYS
from crl.engine.jobs import StageOutcome
from crl.engine.parts import PartProgress
from crl.errors import DataCheckFailed, EnvironmentBroken
from crl.protocols import Services
from crl.records import Row
from crl.rounds.context import MemoryWriter, Progress, StageContext, Writer
from crl.rounds.provenance import has_broken, joined
from crl.rounds.stage import Recipe, Stage
from crl.run.refused import discard_refused, keep_refused
from crl.run.seeds import stage_seed_words

if TYPE_CHECKING:
    from crl.run.directory import RunDirectory
    from crl.run.writer import StageWriter

_NOTES = "notes"
"""Where the manifest of a part keeps what its stage wants in the manifest beside the digest."""
_TEMPLATES = "chat_templates"
"""Where a manifest says which chat templates its stage sampled with."""
_PACKAGES = ("torch", "transformers", "deepspeed", "peft", "trl", "numpy", "pyarrow")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who runs a stage, and what it reports on the way."""

    token: int
    """Fencing token of the lease."""
    progress: Progress = lambda metrics: None
    number: int = 1
    """How often the stage was tried, this time included; provenance only."""
    command: str = ""
    """Command line behind the attempt; provenance only."""
    expectations: Mapping[str, Any] = field(default_factory=dict)
    """A user's own suites of data checks by table. They may fail the stage and change nothing that it writes."""
    broken_episodes_limit: float = 0.9
    """Largest share of the games of a stage, or of one of its task families, that may break."""
    begun: Callable[[Path], None] = lambda directory: None
    """Called with the stage's temporary directory before it runs: it is sent to further ranks."""
    before_commit: Callable[[], None] = lambda: None
    """Called after the stage ran, before it is committed: waits for further ranks."""
    chat_templates: Callable[[], Mapping[str, str]] = dict
    """Which chat template wrote the prompts of each role that sampled here; provenance only."""
    ways: Callable[[], Mapping[str, Mapping[str, str]]] = dict
    """In which way each role was sampled from and updated here; provenance only."""


def execute_stage(
    run: RunDirectory, recipe: Recipe, round_number: int, stage_name: str, *, attempt: Attempt, services: Services
) -> StageOutcome:
    """Run a stage and commit it, or skip it where it is complete.

    Raises what the stage raises, DataCheckFailed where a table breaks a rule, StaleAttempt where the lease was lost.
    Whatever is raised, nothing is committed.
    """
    if run.is_complete(round_number, stage_name):
        return _outcome(run, round_number, stage_name, seconds=0.0, skipped=True)
    stage = recipe.stage(run.method, round_number, stage_name)
    started = time.monotonic()
    counted = missing_parts(run, recipe, round_number, stage_name, services)
    one_part = counted == (1, [0])
    if not one_part:
        _run_missing_parts(run, recipe, stage, round_number, *counted, attempt, services)
    with run.begin(round_number, stage_name, token=attempt.token) as writer:
        context = _context(
            run, recipe, stage, round_number, writer, services, attempt.progress, attempt.broken_episodes_limit
        )
        attempt.begun(context.directory)
        if stage.run is not None:
            stage.run(context)
            inputs = context.inputs
        elif one_part:
            inputs = _run_as_one(stage, context, writer)
        elif stage.parts is not None:
            inputs = _concatenate(run, stage, round_number, stage.parts(context), context)
        _note_models(context, attempt)
        try:
            context.require_games()
        except EnvironmentBroken:
            run.discard_parts(round_number, stage_name, lambda kept: has_broken(kept.get(_NOTES, {})))
            raise
        try:
            checked = _check(writer.tables(), f"round {round_number}, stage {stage_name}", attempt.expectations)
        except DataCheckFailed:
            keep_refused(run.path, round_number, stage_name, writer.tables())
            raise
        attempt.before_commit()
        seconds = time.monotonic() - started
        writer.commit(
            inputs=sorted(inputs),
            method_digest=run.method_digest,
            seed=stage_seed_words(run.method.seed, round_number, stage_name),
            provenance={
                **_provenance(run.method, attempt, seconds),
                "checks": checked,
                **context.provenance,
            },
        )
    discard_refused(run.path, round_number, stage_name)
    return _outcome(run, round_number, stage_name, seconds=seconds, skipped=False)


def execute_part(
    run: RunDirectory,
    recipe: Recipe,
    round_number: int,
    stage_name: str,
    part: int,
    *,
    attempt: Attempt,
    services: Services,
) -> StageOutcome:
    """Run one part of a stage and commit the part, or skip it where it is complete. Any engine, any order."""
    if run.is_complete(round_number, stage_name) or run.part_is_complete(round_number, stage_name, part):
        return StageOutcome(round_number, stage_name, digest="", seconds=0.0, skipped=True)
    stage = recipe.stage(run.method, round_number, stage_name)
    if stage.run_part is None:
        raise AssertionError(f"stage {stage_name} has no parts")
    started = time.monotonic()
    with run.begin_part(round_number, stage_name, part, token=attempt.token) as writer:
        context = _context(run, recipe, stage, round_number, writer, services, attempt.progress)
        stage.run_part(context, part)
        _note_models(context, attempt)
        tables = writer.tables()
        # A user's rules speak of all rows of a stage: they are held against the whole of it.
        _check(tables, f"round {round_number}, stage {stage_name}, part {part}", {})
        seconds = time.monotonic() - started
        writer.commit(
            inputs=sorted(context.inputs),
            method_digest=run.method_digest,
            seed=stage_seed_words(run.method.seed, round_number, stage_name),
            provenance={**_provenance(run.method, attempt, seconds), _NOTES: context.provenance},
        )
    rows = {row_type.table: table.num_rows for row_type, table in tables.items()}
    return StageOutcome(round_number, stage_name, digest="", seconds=seconds, rows=rows)


def missing_parts(
    run: RunDirectory, recipe: Recipe, round_number: int, stage_name: str, services: Services
) -> tuple[int, list[int]]:
    """How many parts a stage has, and the indexes of those that are not complete; (0, []) for one without parts."""
    stage = recipe.stage(run.method, round_number, stage_name)
    if stage.parts is None:
        return 0, []
    writer = MemoryWriter()
    count = stage.parts(_context(run, recipe, stage, round_number, writer, services, lambda metrics: None))
    if writer.tables or writer.shared:
        raise AssertionError(f"parts() of stage {stage_name} may read, not write")
    return count, [part for part in range(count) if not run.part_is_complete(round_number, stage_name, part)]


def _run_as_one(stage: Stage, context: StageContext, writer: StageWriter) -> set[tuple[int, str]]:
    """Write the rows of the only part as those of the stage; returns what the part (and counting it) read."""
    assert stage.parts is not None and stage.run_part is not None
    stage.parts(context)
    stage.run_part(context, 0)
    for row_type in stage.writes:
        if row_type not in writer.tables():
            context.write(row_type, [])
    return context.inputs


def _run_missing_parts(
    run: RunDirectory,
    recipe: Recipe,
    stage: Stage,
    round_number: int,
    count: int,
    missing: list[int],
    attempt: Attempt,
    services: Services,
) -> None:
    combined = PartProgress(count, attempt.progress)
    combined.finished_before(count - len(missing))
    for part in missing:
        inner = partial(combined.report, part)
        execute_part(
            run,
            recipe,
            round_number,
            stage.name,
            part,
            attempt=replace(attempt, progress=inner),
            services=services,
        )


def _concatenate(
    run: RunDirectory, stage: Stage, round_number: int, count: int, context: StageContext
) -> set[tuple[int, str]]:
    """Write the stage's tables from its parts and join their notes; returns what they (and counting them) read."""
    inputs = set(context.inputs)
    for row_type in stage.writes:
        tables = [run.read_part(round_number, stage.name, part, row_type) for part in range(count)]
        if tables:
            context.write_table(row_type, pa.concat_tables(tables))
        else:
            context.write(row_type, [])
    for part in range(count):
        inputs |= run.part_inputs(round_number, stage.name, part)
        context.provenance = joined(
            context.provenance, run.part_provenance(round_number, stage.name, part).get(_NOTES, {})
        )
    return inputs


def _context(
    run: RunDirectory,
    recipe: Recipe,
    stage: Stage,
    round_number: int,
    writer: Writer,
    services: Services,
    progress: Progress,
    broken_episodes_limit: float = 1.0,
) -> StageContext:
    return StageContext(
        method=run.method,
        recipe=recipe,
        stage=stage,
        round_number=round_number,
        reader=run,
        writer=writer,
        services=services,
        progress=progress,
        unfinished=run.unfinished_path(round_number, stage.name),
        broken_episodes_limit=broken_episodes_limit,
    )


def _note_models(context: StageContext, attempt: Attempt) -> None:
    """Note which chat templates the stage, or its part, sampled with, and in which ways models were computed."""
    for name, found in {_TEMPLATES: attempt.chat_templates(), WAYS: attempt.ways()}.items():
        if found:
            context.provenance[name] = {**context.provenance.get(name, {}), **found}


def _check(tables: dict[type[Row], pa.Table], where: str, own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each suite looked at, for the manifest: that a stage is committed says only that nothing was broken."""
    from crl.checks import check_tables

    results = check_tables(tables, where=where, own=own)
    return [
        {"table": each.table, "rows": each.rows, "rules": each.expectations, "passed": each.success} for each in results
    ]


def _outcome(run: RunDirectory, round_number: int, stage_name: str, *, seconds: float, skipped: bool) -> StageOutcome:
    manifest = run.manifest(round_number, stage_name)
    files = manifest.digested.files.items()
    rows = {Path(name).stem: file.rows for name, file in files if file.rows is not None}
    return StageOutcome(round_number, stage_name, manifest.digest, seconds, rows, skipped)


def _provenance(method: Method, attempt: Attempt, seconds: float) -> dict[str, Any]:
    """What is beside the digest: where, with what, how often tried. The writer adds times, host and process."""
    return {
        "machine": platform.platform(),
        "seconds": round(seconds, 3),
        "attempt": attempt.number,
        "command": attempt.command or " ".join(sys.argv),
        "versions": _versions(_played_with(method)),
        **_processor(),
    }


def _processor() -> dict[str, Any]:
    """What models are computed by here, and whether in bfloat16; nothing where no model was loaded."""
    if "torch" not in sys.modules:
        return {}
    from crl.policies.machine import computes_bfloat16, processor

    return {"bfloat16": computes_bfloat16(), "processor": processor()}


def _played_with(method: Method) -> tuple[str, ...]:
    """The packages of others that its environments play with."""
    return tuple(dict.fromkeys(name for family in method.families for name in family.environment.PACKAGES))


@cache
def _versions(further: tuple[str, ...]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("complementary-rl", *_PACKAGES, *further):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
