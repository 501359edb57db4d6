"""Runs of a study that begin with a round of another arm's: the same warm start, or the same training up to a point.

A parent is run up to that round, its forks are made, then it goes on: what retention deletes later is still there.
"""

from __future__ import annotations

from collections.abc import Callable

from crl.errors import CrlError
from crl.lab.study.plan import PlannedRun


def make_forks(parent: PlannedRun, advance: Callable[[int], None]) -> None:
    """Make every fork of a run that is not there yet; `advance` runs the parent up to a round.

    One thread at a time, any number may call it. Raises what `advance` raises, and what :func:`crl.recipes.fork.fork`
    raises, naming the arm.
    """
    from crl.recipes.fork import fork
    from crl.run.directory import RunDirectory

    with parent.forking:
        for child in sorted(parent.forks, key=lambda each: each.fork_round):
            if child.path.exists():
                continue
            if parent.rounds_done() < child.fork_round:
                advance(child.fork_round)
            try:
                fork(RunDirectory.open(parent.path), child.fork_round, child.experiment, child.path.parent)
            except CrlError as error:
                error.where = f"arm {child.arm}, a fork of {parent.name}" + (f"; {error.where}" if error.where else "")
                raise
