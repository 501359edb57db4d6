"""What a run was asked to reach, from its journal: rounds, who asked, and with which runtime."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from crl.config import Experiment, Runtime
from crl.config.base import MOST_ROUNDS
from crl.run.journal import Journal

if TYPE_CHECKING:
    from crl.run.directory import RunDirectory

_EVENT = "target"


@dataclass(frozen=True, slots=True)
class Target:
    """Rounds that somebody set out to complete."""

    first: int
    last: int
    purpose: str | None
    """Who asked (a flow run's id); None at the command line."""
    runtime: dict[str, Any] | None
    """The runtime it was asked with, as plain data."""


def targets(journal: Journal) -> list[Target]:
    """Every target of a run, oldest first."""
    return [
        Target(int(line["first"]), int(line["last"]), line.get("purpose"), line.get("runtime"))
        for line in journal.read()
        if line.get("event") == _EVENT
    ]


def remember_target(
    journal: Journal, first: int, last: int, *, purpose: str | None, token: int, runtime: Runtime
) -> tuple[int, int]:
    """Write a target down and return its rounds.

    Whoever asked before (a retried flow run) gets the rounds of that time again, with the runtime of now: engines and
    later resumes take the one that was written last.
    """
    known, plain = targets(journal), runtime.model_dump(mode="json")
    before = next((target for target in known if purpose is not None and target.purpose == purpose), None)
    if before is not None:
        first, last = before.first, before.last
    if before is None or known[-1].runtime != plain:
        journal.record(_EVENT, token=token, first=first, last=last, purpose=purpose, runtime=plain)
    return first, last


def begin_after(directory: Path, round_number: int, runtime: Runtime) -> None:
    """Note the runtime of a run that goes on after a round. Nothing is asked of it yet."""
    remember_target(Journal(directory), round_number + 1, round_number, purpose=None, token=0, runtime=runtime)


def fork_run(
    parent: RunDirectory,
    round_number: int,
    experiment: Experiment,
    root: Path,
    *,
    runtime: Runtime | None = None,
    keep_rollouts: bool = False,
) -> RunDirectory:
    """Make the run `root/<name>` of an experiment, which goes on after a round of `parent`: `crl/rounds/fork.py`.

    It notes a runtime, by default the parent's last one, for whoever resumes it; nothing is asked of it yet. Raises as
    `fork`, and RecordDamaged for a parent that is not intact.
    """
    from crl.audit.verify import require_intact
    from crl.engine.ways import inherit
    from crl.rounds.fork import fork
    from crl.rounds.recipe import recipe_in

    from_rows = partial(recipe_in(parent).from_rows, parent.method)
    require_intact(parent.path, from_rows=from_rows, until=round_number + keep_rollouts)
    known = runtime or last_runtime(parent.path)

    def also(directory: Path) -> None:
        begin_after(directory, round_number, known)
        inherit(directory, parent, experiment.method)

    return fork(parent, round_number, experiment, root, keep_rollouts=keep_rollouts, also=also)


def next_round(run: RunDirectory) -> int:
    """The first round whose stages are not all complete; round 0 prepares."""
    from crl.rounds.recipe import recipe_in

    recipe, number = recipe_in(run), 0
    while all(run.is_complete(number, stage.name) for stage in recipe.stages_of(run.method, number)):
        number += 1
    return number


def last_runtime(run_path: Path) -> Runtime:
    """Shards, limits and retention that a run last set out with; the defaults where it never did.

    What this version does not take of them, another one having written it, is left out with a warning; where that is
    about retention, every checkpoint is kept.
    """
    asked = (target.runtime for target in reversed(targets(Journal(run_path))))
    known: dict[str, Any] = next((runtime for runtime in asked if isinstance(runtime, dict)), {})
    try:
        return Runtime.model_validate(known)
    except ValidationError as error:
        dropped = sorted({str(each["loc"][0]) for each in error.errors()})
    keeps = {"save_total_limit": MOST_ROUNDS} if any(key.startswith("keep_") for key in dropped) else {}
    told = ", ".join(f"runtime.{key}" for key in dropped)
    warnings.warn(
        f"{run_path} last ran with settings that this version of crl does not know ({told}): "
        f"{'every checkpoint is kept' if keeps else 'the default holds'} until `crl train` is given its experiment",
        stacklevel=2,
    )
    return Runtime.model_validate({key: value for key, value in known.items() if key not in dropped} | keeps)
