"""The faults that only a server tells of, in runs that a real Prefect server and worker operate, and one that a stage
raises; every fault in every stage is `make test-slow`.

All of it is one course of events, because the death of everything at once takes a minute and a half to be noticed:
meanwhile another run is continued, one hangs, and the server is stopped and started.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.faults.segments import Fault, Segment, Way, break_from_outside, nothing_runs_for_ever
from tests.operate import Operation, operation
from tests.processes import wait_until

BEFORE = (
    (Fault.exception, Way.resume, "0002/update_actor"),
    (Fault.everything, Way.retry, "0002/consolidate"),
)
MEANWHILE = (
    (Fault.server, Way.retry, "0002/credit"),
    (Fault.hang, Way.retry, "0002/evaluate"),
)


def test_a_fault_of_each_kind_and_the_run_goes_on(finished: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        operated = stack.enter_context(operation(tmp_path / "operation"))
        segments = {
            fault: stack.enter_context(Segment(operated, finished, fault, way, (place,)).prepared())
            for fault, way, place in (*BEFORE, *MEANWHILE)
        }
        _break(operated, [segments[fault] for fault, _, _ in BEFORE])

        # A run whose process starts in the very moment in which the server is away ends CRASHED: all are under way.
        for fault in (Fault.server, Fault.hang):
            segments[fault].begin()
        for fault in (Fault.server, Fault.hang):
            segments[fault].wait_reached()
        break_from_outside(operated, Fault.server, [segments[Fault.server]])
        segments[Fault.server].arrive()
        segments[Fault.exception].go_on()
        segments[Fault.exception].arrive()

        late = [segments[fault] for fault in (Fault.everything, Fault.hang)]
        for segment in late:
            segment.wait_dead()
            segment.look()
            segment.go_on()
        for segment in late:
            segment.arrive()

        nothing_runs_for_ever(operated)
        taken = [each.name for each in segments.values() if operated.limit(each.name)["active_slots"]]
        assert not taken, f"the slots of {taken} are taken although nothing runs"
        wait_until(lambda: not operated.flow_processes(), "no process of a flow lives")


def _break(operated: Operation, segments: list[Segment]) -> None:
    """Bring each to its place, and then break from the least to the worst."""
    for segment in segments:
        segment.begin()
    for segment in segments:
        segment.wait_reached()
    for segment in segments:
        break_from_outside(operated, segment.fault, [segment])
        if segment.fault is not Fault.everything:
            segment.wait_dead()
        segment.look()
