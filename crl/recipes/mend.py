"""Mending a damaged record: every file that follows from the rest of it is made again and put back, byte for byte.

What cannot be made again this way (what a model wrote, checkpoints, what lies behind a loss) is left, with the reason:
`crl redo` takes the stage back. A manifest is made again but for its provenance: times and host are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crl.errors import CrlError, RecordDamaged
from crl.protocols import Services
from crl.recipes.recovery import Recovery
from crl.recipes.stage import Recipe
from crl.run.directory import RunDirectory, complete_stages
from crl.run.manifest import MANIFEST, Manifest, key_of
from crl.run.putback import put_back
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
            content = _content(recovery, problem)
        except CrlError as error:
            done.left.append((problem, error))
            continue
        kept = put_back(run.path, {problem.file: content}, token=token)
        done.mended.append(problem.file)
        done.kept += [] if kept is None else [kept.relative_to(run.path).as_posix()]
    return done


def _content(recovery: Recovery, problem: Problem) -> bytes:
    number, stage = problem.round, problem.stage
    if number is None or stage is None:
        raise RecordDamaged(f"{problem.file} belongs to no stage", next_step=problem.mend)
    if problem.file != f"rounds/{key_of(number, stage)}/{MANIFEST}":
        return recovery.content(problem.file)
    digested = recovery.remade(number, stage).digested
    return Manifest.seal(digested, {"sequence": _sequence(recovery.run, number, stage), "mended": True}).render()


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
