"""Timings among the notes of a stage: batches add up, those of parts too, and other notes are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from crl.rounds.provenance import add_time, joined


def test_batches_add_up():
    notes: dict[str, Any] = {"index": {"bank": "exact"}}
    for items, seconds in ((4, 0.5), (0, 9.0), (8, 0.25)):
        add_time(notes, "retrieval", items=items, seconds=seconds)
    assert notes == {
        "index": {"bank": "exact"},
        "timings": {"retrieval": {"batches": 2, "items": 12, "seconds": 0.75, "longest": 0.5}},
    }


def test_notes_of_parts_are_joined():
    parts: list[dict[str, Any]] = [{"index": {"a": "exact"}}, {}, {"index": {"a": "other"}}]
    add_time(parts[0], "play", items=4, seconds=1.0)
    add_time(parts[2], "play", items=4, seconds=3.0)
    add_time(parts[2], "answers", items=1, seconds=0.5)
    found: dict[str, Any] = {}
    for part in parts:
        found = joined(found, part)
    assert found["index"] == {"a": "exact"}
    assert found["timings"]["play"] == {"batches": 2, "items": 8, "seconds": 4.0, "longest": 3.0}
    assert found["timings"]["answers"]["seconds"] == pytest.approx(0.5)
    assert joined({}, {}) == {}
