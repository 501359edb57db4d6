"""What crosses the engine's socket: jobs down, outcomes up, as JSON. Only paths, numbers and digests; never rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

ProgressMetrics = Mapping[str, Any]
"""Progress of a stage or a part: `done`, `total` and whatever else it tells."""


class JobKind(StrEnum):
    """What an engine is asked to do."""

    stage = "stage"
    """Run a stage and commit it."""
    part = "part"
    """Run one part of a stage and commit the part."""
    count_parts = "count_parts"
    """Say how many parts a stage has, and which are complete."""
    release = "release"
    """Free every model that is held."""
    validate = "validate"
    """Validate a committed round by Great Expectations (`crl/validation/process.py`; no worker of stages does)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request to an engine."""

    kind: JobKind
    run_path: str
    round: int
    stage: str
    token: int
    """Fencing token of the lease: a commit under an older one is refused."""
    part: int | None = None
    attempt: int = 1
    command: str = ""
    """Command line of the process that asked; provenance only."""
    expectations: dict[str, Any] = field(default_factory=dict)
    """A user's own suites of data checks by table (`runtime.expectations`)."""
    broken_episodes_limit: float = 0.9
    """Largest share of the games of a stage, or of one of its task families, that may break (`runtime`)."""
    directory: str | None = None
    """Where the stage is written; sent to the ranks above 0, which do not write the record themselves."""

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        """A job that crossed the socket."""
        return Job(**{**data, "kind": JobKind(data["kind"])})


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What became of a stage (or of one part of it)."""

    round: int
    stage: str
    digest: str
    """Digest of the committed stage; empty for a part."""
    seconds: float
    rows: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    skipped: bool = False
    """Whether it was complete already."""

    @staticmethod
    def from_json(data: dict[str, Any]) -> StageOutcome:
        """An outcome that crossed the socket."""
        return StageOutcome(**data)


def encode(message: dict[str, Any]) -> bytes:
    """A message as bytes. What JSON does not know becomes an object (jobs, outcomes), a number (NumPy scalars) or text
    (paths)."""
    return json.dumps(message, default=_plain).encode()


def decode(content: bytes) -> dict[str, Any]:
    """The inverse of :func:`encode`."""
    return cast(dict[str, Any], json.loads(content))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    item = getattr(value, "item", None)  # NumPy and torch scalars
    return item() if callable(item) else str(value)
