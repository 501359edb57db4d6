"""How long parts of a stage took, for the manifest's provenance: rows hold no clock times.

A timing is of one kind of work in one stage, such as `retrieval`: how many batches, items in them, seconds in all and
of the longest batch. Timings of a stage's parts are added up. In SQL: the view `timings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crl.rounds import provenance as broken

TIMINGS = "timings"
"""Their place among the notes of a stage, by kind of work."""


def note_time(notes: dict[str, Any], work: str, *, items: int, seconds: float) -> None:
    """Add one batch to the timings in a stage's notes; none without items."""
    if not items:
        return
    batch = {"batches": 1, "items": items, "seconds": round(seconds, 6), "longest": round(seconds, 6)}
    timings = notes.setdefault(TIMINGS, {})
    timings[work] = _added(timings[work], batch) if work in timings else batch


def joined(notes: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The notes of several parts of a stage as those of the stage: timings and games that broke are added up, else the
    first is kept."""
    timings = dict(notes.get(TIMINGS, {}))
    for work, found in more.get(TIMINGS, {}).items():
        timings[work] = _added(timings[work], found) if work in timings else found
    games = broken.joined(notes.get(broken.BROKEN, {}), more.get(broken.BROKEN, {}))
    return {
        **more, **notes, **({TIMINGS: timings} if timings else {}), **({broken.BROKEN: games} if games else {})
    }  # fmt: skip


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "batches": one["batches"] + other["batches"],
        "items": one["items"] + other["items"],
        "seconds": round(one["seconds"] + other["seconds"], 6),
        "longest": max(one["longest"], other["longest"]),
    }
