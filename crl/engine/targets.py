"""What a run was asked to reach, from its journal: rounds, who asked, and with which runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.config import Runtime
from crl.run.journal import Journal

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
    """Write a target down and return its rounds; whoever asked before gets the answer of that time again."""
    for target in targets(journal):
        if purpose is not None and target.purpose == purpose:
            return target.first, target.last
    plain = runtime.model_dump(mode="json")
    journal.record(_EVENT, token=token, first=first, last=last, purpose=purpose, runtime=plain)
    return first, last


def last_runtime(run_path: Path) -> Runtime:
    """Shards, limits and retention that a run last set out with; the defaults where it never did."""
    for target in reversed(targets(Journal(run_path))):
        if target.runtime is not None:
            try:
                return Runtime.model_validate(target.runtime)
            except ValueError:
                break  # written by a version with other fields: nothing that changes a number is lost
    return Runtime()
