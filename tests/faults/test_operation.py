"""Two faults in runs that a real Prefect server and worker operate: a stage that raises, continued without a server;
kill -9 of server, worker, flow and engine at once, continued by Retry. Every fault in the stages is `make test-slow`.

Both are one course of events, because the death of everything takes a minute and a half to be noticed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.faults.segments import Fault, Segment, Way, break_from_outside, nothing_runs_for_ever
from tests.operate import operation
from tests.processes import wait_until

EXCEPTION = (Fault.exception, Way.resume, "0002/update_actor")
EVERYTHING = (Fault.everything, Way.retry, "0002/consolidate")


def test_a_fault_of_each_kind_and_the_run_goes_on(finished: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        operated = stack.enter_context(operation(tmp_path / "operation"))
        raised, killed = (
            stack.enter_context(Segment(operated, finished, fault, way, (place,)).prepared())
            for fault, way, place in (EXCEPTION, EVERYTHING)
        )
        for segment in (raised, killed):
            segment.begin()
        for segment in (raised, killed):
            segment.wait_reached()
        raised.wait_dead()
        raised.look()
        break_from_outside(operated, Fault.everything, [killed])
        killed.look()

        raised.go_on()
        raised.arrive()
        killed.wait_dead()
        killed.look()
        killed.go_on()
        killed.arrive()

        nothing_runs_for_ever(operated)
        taken = [each.name for each in (raised, killed) if operated.limit(each.name)["active_slots"]]
        assert not taken, f"the slots of {taken} are taken although nothing runs"
        wait_until(lambda: not operated.flow_processes(), "no process of a flow lives")
