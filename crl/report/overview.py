"""The runs of a folder at a glance: where each stands, how far it is, its newest held-out success. For `crl list`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crl.errors import CrlError
from crl.report.state import last_failure, last_round, missing_stage, running_stages, stopped
from crl.report.success import NONE, Rate
from crl.report.summary import summarize
from crl.rounds.approvals import awaited
from crl.run.directory import RunDirectory
from crl.run.find import changed, runs_in
from crl.run.journal import Journal
from crl.run.lease import lease_state


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run. `with_bank` and `without_bank` are of the last round that has held-out games, `evaluated`."""

    name: str
    changed: datetime
    state: str = "damaged"
    """Its status in words: running, waiting for approval, interrupted, failed, stopped, unfinished, complete or
    damaged."""
    rounds: int = 0
    """Rounds that are complete."""
    asked: int = 0
    """Rounds that were asked for."""
    evaluated: int | None = None
    with_bank: Rate = NONE
    without_bank: Rate = NONE


def overview(root: Path) -> list[RunLine]:
    """A line for each run of a folder, the one that changed last first."""
    return [_line(path) for path in runs_in(root)]


def _line(path: Path) -> RunLine:
    when = datetime.fromtimestamp(changed(path), UTC)
    try:
        run, events = RunDirectory.open(path), list(Journal(path).read())
        asked = last_round(run, events)
        missing = missing_stage(run, asked)
        rounds = asked if missing is None else max(missing[0] - 1, 0)
        line = RunLine(path.name, when, _state(run, events, missing is not None), rounds, asked)
        for number in reversed(run.rounds()):
            if any(stage.startswith("evaluate") for stage in run.complete_stages(number)):
                newest = summarize(path, [number])[-1]
                return RunLine(
                    line.name, when, line.state, rounds, asked, number, newest.with_bank, newest.without_bank
                )
    except CrlError:
        return RunLine(path.name, when)
    return line


def _state(run: RunDirectory, events: Sequence[dict[str, Any]], unfinished: bool) -> str:
    owner, failure = lease_state(run.path), last_failure(events)
    if awaited(run.path) is not None:
        return "waiting for approval"
    if owner is not None and owner.live:
        return ", ".join(["running", *running_stages(events)[-1:]])
    if stopped(events) is not None:
        return "stopped"
    if not unfinished:
        return "complete"
    if failure is not None:
        return f"failed: round {failure.get('round')}, {failure.get('stage')}"
    return "interrupted" if owner is not None else "unfinished"
