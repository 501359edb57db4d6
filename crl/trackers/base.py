"""What a tracker is, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from crl.paths import quoted
from crl.report.markdown import code


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that a tracker is opened for."""

    path: Path
    """The record, as an absolute path: trackers name it beside their metrics."""
    experiment: str
    method: Mapping[str, Any]
    """The frozen method, flat: `rollout.group_size` to its value."""
    method_digest: str
    earlier: str | None = None
    """`Tracker.id` of the last time this tracker was opened for this run: go on there."""


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """One complete round, derived from its record."""

    round: int
    """Also the step of every metric."""
    values: Mapping[str, float]
    """By name: `success/guided`, `held_out/with_bank`, `bank/entries`, `update_actor/loss`, `seconds/collect` …"""
    success: Sequence[Mapping[str, Any]]
    """Rows of the view `success_by_condition` of every round up to this one."""
    tables: str
    """The round tables up to this round, as Markdown."""
    digest: str
    """SHA-256 over the digests of the round's stages: `crl verify` vouches for these."""
    head: str
    """Head of the run after this round: `crl verify --head` holds the run against it."""


class Tracker(Protocol):
    """Writes rounds somewhere. It may raise whatever it likes: that is a warning and never stops a run.

    Made as `Class(run, **options)` with the options from `runtime.trackers`. It lives in the process that drives a run,
    so its module must not import model libraries.
    """

    requires: ClassVar[str | None] = None
    """Module that must be installed."""
    id: str
    """What the tracker needs to go on with this run after a restart; handed back as `TrackedRun.earlier`. With another
    id than that it has begun anew, and gets every round."""

    def __init__(self, run: TrackedRun) -> None: ...

    def write(self, round_metrics: RoundMetrics) -> None:
        """Write one round, with `round_metrics.round` as the step. Rounds come in order, each once."""
        ...

    def close(self) -> None:
        """Flush, and end whatever was started."""
        ...


def record_of(path: Path, head: str = "") -> str:
    """The link to the record, as Markdown: where it is, and what vouches for it, after a round with the head then."""
    verify = f"crl verify {quoted(path)}" + (f" --head {head}" if head else "")
    return f"record: {code(str(path))}, verified by {code(verify)}"
