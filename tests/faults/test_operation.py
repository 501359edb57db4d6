"""Each fault once, in a run that a real Prefect server and worker operate; the whole matrix is `make test-slow`.

All of it is one course of events, because the two faults that only the missing heartbeat tells of take a minute and a
half to be noticed: they wait while the others are continued.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.faults.segments import INSIDE, Fault, Segment, Way, break_from_outside, nothing_runs_for_ever
from tests.operate import operation

COURSE = (
    (Fault.hang, Way.retry, "0002/evaluate"),
    (Fault.exception, Way.retry, "0002/distill"),
    (Fault.engine, Way.resume, "0002/update_extractor"),
    (Fault.disk, Way.retry, "0002/update_actor"),
    (Fault.flow, Way.resume, "0002/collect"),
    (Fault.server, Way.retry, "0002/credit"),
    (Fault.worker, Way.retry, "0002/merge"),
    (Fault.everything, Way.retry, "0002/consolidate"),
)


def test_each_fault_once_and_the_run_goes_on(finished: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        operated = stack.enter_context(operation(tmp_path / "operation"))
        segments = {
            fault: stack.enter_context(Segment(operated, finished, fault, way, (place,)).prepared())
            for fault, way, place in COURSE
        }
        # The time limit of the one that hangs must not be spent on waiting for a processor.
        segments[Fault.hang].begin()
        segments[Fault.hang].wait_reached()
        for segment in segments.values():
            if segment.fault is not Fault.hang:
                segment.begin()
        outside = [segment for fault, segment in segments.items() if fault not in INSIDE]
        for segment in segments.values():
            segment.wait_reached()

        for fault in INSIDE:
            segments[fault].wait_dead()
            segments[fault].look()
        # From here on the flow, then the server, then the worker, then all of it: each is broken while others are held.
        for segment in outside:
            break_from_outside(operated, segment.fault, [segment])
            if segment.fault is Fault.flow:
                segment.wait_dead()
            segment.look()
        for fault in INSIDE:
            segments[fault].finish()
        segments[Fault.flow].finish()
        segments[Fault.server].finish()
        for fault in (Fault.worker, Fault.everything):
            segments[fault].wait_dead()
            segments[fault].look()
            segments[fault].finish()
        nothing_runs_for_ever(operated)
        for segment in segments.values():
            assert operated.limit(segment.name)["active_slots"] == 0
        assert operated.flow_processes() == []
