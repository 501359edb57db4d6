"""Mending a damaged record: every file, or whole stage, that follows from the rest is put back, byte for byte.

Stages are mended in the order they were made, so that each finds what it was made from. What cannot be made again (what
a model wrote, checkpoints, what comes after a loss) is left, with the reason: `crl redo` takes the stage back. A
manifest is made again but for its provenance: times and host are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from crl.audit.again import remake
from crl.audit.verify import Problem, damage
from crl.errors import CrlError, RecordDamaged
from crl.protocols import Services
from crl.rounds.publish import import_again
from crl.rounds.stage import Recipe
from crl.run.aside import put_back
from crl.run.directory import RunDirectory
from crl.run.files import link_to, sha256_bytes, sha256_or_size
from crl.run.imports import IMPORTS
from crl.run.manifest import MANIFEST, Manifest, key_of


@dataclass
class Mending:
    """What became of the problems of a run."""

    mended: list[str] = field(default_factory=list)
    """Run-relative paths."""
    left: list[tuple[Problem, CrlError]] = field(default_factory=list)
    """What could not be made again, and why."""
    kept: list[str] = field(default_factory=list)
    """Directories that hold the damaged files now."""


def may_follow(run: RunDirectory, recipe: Recipe, problem: Problem) -> bool:
    """Whether a damaged file belongs to what is a function of the rest of the record."""
    if problem.round is None or problem.stage is None:
        return False
    return problem.file.startswith(f"{IMPORTS}/") or recipe.from_rows(run.method, problem.round, problem.stage)


def mend(
    run: RunDirectory, recipe: Recipe, services: Services, *, token: int, problems: Sequence[Problem] | None = None
) -> Mending:
    """Put back what can be made again of the problems (by default all damage), the oldest first. Raises StaleAttempt,
    DiskFull."""

    def place(problem: Problem) -> tuple[int, int, str, bool]:
        """Round, stage in the order of the round, and whether the stage made it: what it began with comes first."""
        assert problem.round is not None and problem.stage is not None
        names = [stage.name for stage in recipe.stages_of(run.method, problem.round)]
        order = names.index(problem.stage) if problem.stage in names else len(names)
        return problem.round, order, problem.stage, not problem.file.startswith(f"{IMPORTS}/")

    done = Mending()
    problems = damage(run.path) if problems is None else problems
    of_stages = [problem for problem in problems if problem.round is not None and problem.stage is not None]
    for _, listed in groupby(sorted(of_stages, key=lambda each: (place(each), each.file)), key=place):
        together = list(listed)
        try:
            contents = _contents(run, recipe, services, together)
        except CrlError as error:
            done.left += [(problem, error) for problem in together]
            continue
        kept = put_back(run.path, contents, token=token) if contents else None
        done.kept += [] if kept is None else [kept.relative_to(run.path).as_posix()]
        for problem in together:
            if problem.file in contents or f"{problem.file}/{MANIFEST}" in contents:
                done.mended.append(problem.file)
            else:
                done.left.append((problem, _differs(problem)))
    for problem in problems:
        if problem not in of_stages and problem.file not in done.mended:  # what was in its place moved away
            done.left.append((problem, RecordDamaged(f"{problem.file} belongs to no stage", next_step=problem.mend)))
    return done


def _contents(run: RunDirectory, recipe: Recipe, services: Services, problems: Sequence[Problem]) -> dict[str, bytes]:
    """What is to be put back for the problems of one stage, by run-relative path. Raises RecordDamaged."""
    number, stage = problems[0].round, problems[0].stage
    assert number is not None and stage is not None
    if problems[0].file.startswith(f"{IMPORTS}/"):
        # No stage wrote the bank that the experiment began with, but round 0 holds all of it.
        made_again = import_again(run)
        return {made_again.relative: made_again.content}
    directory = f"rounds/{key_of(number, stage)}"
    made = remake(run, recipe, number, stage, services)
    contents = {name: content for name, content in made.files.items() if not _is_whole(run, name, content)}
    for name in contents:
        # Of a stage, or of one file, the link moves away. Behind another one lie files that are right.
        if (link := link_to(run.path, name)) not in (None, run.path / name, run.path / directory):
            raise RecordDamaged(f"{link} is a link", next_step="the command that `crl verify` names for it, first")
    if {problem.file for problem in problems} & {directory, f"{directory}/{MANIFEST}"}:
        # Its place in the order of commits is that in the recipe: stages of a round are made in that order.
        names = [each.name for each in recipe.stages_of(run.method, number)]
        provenance = {"sequence": names.index(stage) + 1, "mended": True}
        contents[f"{directory}/{MANIFEST}"] = Manifest.seal(made.digested, provenance).render()
    return contents


def _is_whole(run: RunDirectory, name: str, content: bytes) -> bool:
    path = run.path / name
    return link_to(run.path, name) is None and path.is_file() and sha256_or_size(path) == sha256_bytes(content)


def _differs(problem: Problem) -> RecordDamaged:
    return RecordDamaged(
        f"{problem.file}, made again, has other bytes than it had",
        expected="the versions of crl, pyarrow and numpy that its manifest names",
        next_step=problem.redo or problem.mend,
    )
