"""Mending a damaged record: every file, or whole stage, that follows from the rest is put back, byte for byte.

What cannot be made again this way (what a model wrote, checkpoints, what lies behind a loss) is left, with the reason:
`crl redo` takes the stage back. A manifest is made again but for its provenance: times and host are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from crl.errors import CrlError, RecordDamaged
from crl.protocols import Services
from crl.recipes.recovery import Recovery, Remade
from crl.recipes.stage import Recipe
from crl.run.directory import RunDirectory, complete_stages
from crl.run.files import sha256_file
from crl.run.manifest import MANIFEST, Manifest, key_of
from crl.run.putback import put_back, put_back_stage
from crl.run.verify import Problem, Severity, verify


@dataclass
class Mending:
    """What became of the problems of a run."""

    mended: list[str] = field(default_factory=list)
    """Run-relative paths."""
    left: list[tuple[Problem, CrlError]] = field(default_factory=list)
    """What could not be made again, and why."""
    kept: list[str] = field(default_factory=list)
    """Directories where the damaged files lie now."""


def mend(run: RunDirectory, recipe: Recipe, services: Services, *, token: int) -> Mending:
    """Put back what can be made again, the oldest first. Raises StaleAttempt, DiskFull."""
    recovery, done = Recovery(run, recipe, services), Mending()
    problems = [problem for problem in verify(run.path) if problem.severity is Severity.damaged]
    for problem in sorted(problems, key=lambda each: (each.round is None, each.round or 0, each.file)):
        try:
            contents = _contents(recovery, problem)
        except CrlError as error:
            done.left.append((problem, error))
            continue
        stage = f"{problem.file}/"
        inside = {name.removeprefix(stage): content for name, content in contents.items() if name.startswith(stage)}
        beside = {name: content for name, content in contents.items() if not name.startswith(stage)}
        kept = put_back(run.path, beside, token=token) if beside else None
        if inside:  # last, when the files that its rows name lie there
            assert problem.round is not None and problem.stage is not None
            put_back_stage(run.path, problem.round, problem.stage, inside, token=token)
        done.mended.append(problem.file)
        done.kept += [] if kept is None else [kept.relative_to(run.path).as_posix()]
    return done


def _contents(recovery: Recovery, problem: Problem) -> dict[str, bytes]:
    """What is to be put back, by run-relative path: one file, or all of a stage that is gone. Raises RecordDamaged."""
    number, stage = problem.round, problem.stage
    if number is None or stage is None:
        raise RecordDamaged(f"{problem.file} belongs to no stage", next_step=problem.mend)
    directory = f"rounds/{key_of(number, stage)}"
    manifest = f"{directory}/{MANIFEST}"
    if problem.file not in (directory, manifest):
        return {problem.file: recovery.content(problem.file)}
    made = recovery.remade(number, stage)
    provenance = {"sequence": _sequence(recovery.run, number, stage), "mended": True}
    rendered = {manifest: Manifest.seal(made.digested, provenance).render()}
    if problem.file == manifest:
        return rendered
    lost = {name: content for name, content in made.files.items() if not _holds(recovery.path / name, made, name)}
    return lost | rendered


def _holds(path: Path, made: Remade, name: str) -> bool:
    """Whether a shared file lies where it belongs, as it was."""
    return path.is_file() and sha256_file(path) == made.digested.shared.get(name)


def _sequence(run: RunDirectory, round_number: int, stage: str) -> int:
    """The place of a stage among those of its round: the number that the others leave."""
    taken = set()
    for other in complete_stages(run.path, round_number):
        if other != stage:
            try:
                taken.add(run.manifest(round_number, other).provenance.get("sequence"))
            except RecordDamaged:
                continue
    return next(number for number in range(1, len(taken) + 2) if number not in taken)
