"""What a driver hands to whoever runs the parts of a stage in its place: orders small enough to cross machines.

Part runners are given with :meth:`crl.engine.driver.Driver.spread_with`; they use other machines that see the same
file system. Which machine runs a part changes no digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from crl.engine.jobs import Job, ProgressFigures, StageOutcome
from crl.engine.supervisor import Engine


@dataclass(frozen=True, slots=True)
class PartOrder:
    """One part to run: everything a process without a driver must know."""

    job: Job
    """Holds the attempt's token: a part under an older one is refused."""
    count: int
    """Parts of the stage, complete ones included."""
    environment: Mapping[str, str]
    """Added to the environment of the engine."""
    time_limit: float
    """Seconds until the engine of the part is ended."""
    gpus: int = 1
    """How many an engine uses, where there are any."""

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self.job.stage

    @property
    def number(self) -> int:
        """The part, counted from 1 as people do."""
        return (self.job.part or 0) + 1


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """What came of a part that was run for an order."""

    part: int
    skipped: bool
    """Whether it was complete already."""
    seconds: float
    figures: ProgressFigures
    """The latest progress; empty before any was reported."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The missing parts of a stage."""

    parts: tuple[int, ...]
    order: Callable[[int], PartOrder]
    """Makes the order of a part, when it is about to start: its time limit is what is left of the stage's."""
    report: Callable[[int, ProgressFigures], None]
    """Takes the progress of a part."""


class PartRunner(Protocol):
    """Runs the parts of stages somewhere else."""

    def __call__(self, spread: Spread) -> None:
        """Run every part, or raise. Parts that were completed before it raised are kept and not run again."""
        ...

    def cancel(self) -> None:
        """From another thread, for good: the call under way ends what runs and raises Cancelled, later ones too."""
        ...


def run_on(engine: Engine, order: PartOrder, on_figures: Callable[[ProgressFigures], None]) -> PartOutcome:
    """Have an engine run a part. Raises what the part raises, EngineDied, StageTimedOut, Cancelled."""
    latest: ProgressFigures = {}

    def heard(message: dict[str, Any]) -> None:
        nonlocal latest
        latest = message["figures"]
        on_figures(latest)

    done = StageOutcome.from_json(engine.run(order.job, on_message=heard, time_limit=order.time_limit))
    return PartOutcome(part=order.number - 1, skipped=done.skipped, seconds=done.seconds, figures=latest)
