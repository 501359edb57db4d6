"""What happens while rounds run, as small values: the driver emits them, the command line and Prefect show them.

Events are for people who watch. They are never part of the record and nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """A round begins; `stages` are all due in it, in order, complete ones included."""

    round: int
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage begins to run (it was not complete)."""

    round: int
    stage: str
    attempt: int = 1
    """1 the first time since the driver was opened; it grows with each retry."""
    parts: int | None = None
    """Parts still to run where a stage is spread over several engines."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is. Over parts, `done`, `total` and whole-number metrics are sums."""

    round: int
    stage: str
    done: int
    total: int
    seconds: float
    """Seconds since the stage started."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the stage reports: counts, rates, losses. `won`: episodes won so far, of all `total`."""
    working_seconds: float = 0.0
    """Seconds since the stage first reported progress: its models are loaded by then."""


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage ran and is committed."""

    round: int
    stage: str
    digest: str
    seconds: float
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows by table."""


@dataclass(frozen=True, slots=True)
class StageSkipped:
    """A stage was complete already and did not run."""

    round: int
    stage: str
    digest: str


@dataclass(frozen=True, slots=True)
class StageErrored:
    """An attempt of a stage ended with an error; nothing of it was committed."""

    round: int
    stage: str
    error: Mapping[str, Any]
    """`CrlError.payload()`."""
    transient: bool


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """A transient failure will be tried again after `delay_seconds`."""

    round: int
    stage: str
    attempt: int
    """The attempt that will follow."""
    delay_seconds: float
    reason: str
    """The error, in words."""


@dataclass(frozen=True, slots=True)
class RoundDone:
    """Every stage of the round is complete. `seconds` is 0 where nothing was left to do."""

    round: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that an engine process wrote to its standard output or error."""

    text: str
    engine: str = "engine"
    round: int | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Waits:
    """Nothing runs yet: somebody else works on the experiment, or is asked to."""

    reason: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A line for a person that is about no stage."""

    text: str


Event = (
    RoundStarted
    | StageStarted
    | Progress
    | StageDone
    | StageSkipped
    | StageErrored
    | RetryScheduled
    | RoundDone
    | LogLine
    | Waits
    | Remark
)
Subscriber = Callable[[Event], None]
