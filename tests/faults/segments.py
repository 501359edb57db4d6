"""Faults in a run under a real server and worker: a segment is one experiment, broken in one stage after another.

Each time it is continued, by the Retry button's call or by `crl resume` without a server, as far as the next stage that
is to break. So a whole row of the matrix costs little more than one training: nothing is made that is not looked at.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from crl.audit.verify import verify
from crl.run.journal import Journal
from crl.run.manifest import parse_key
from tests.faults.disks import small_disk
from tests.faults.looking import Identity, check_journal, check_kept, identities
from tests.faults.mishaps import BALLAST, EXCEPTION, HALT, Mishap
from tests.operate import CRASHED_SECONDS, Operation, as_parameter, copy_run
from tests.processes import command_line, scaled, wait_until
from tests.tiny_run import ROUNDS, digests, experiment, leftovers

HANG_LIMIT_SECONDS = 60.0
"""Time limit of a stage where one hangs, scaled. Starting an engine counts, which takes half of it."""
NOT_SUBMITTED = "Failed to submit flow run"
PATIENT_PRESSES = 3
ORPHAN_SECONDS = 60.0
"""Until nothing of a dead flow run may live any more; on an idle machine a second, with its last log lines."""


class Fault(StrEnum):
    """What breaks."""

    exception = "exception"
    engine = "engine"
    """The engine is killed, as the system does when memory runs out."""
    hang = "hang"
    disk = "disk"
    flow = "flow"
    """kill -9 of the flow process."""
    worker = "worker"
    """kill -9 of the worker and of the flow process."""
    server = "server"
    """The server is stopped and started. Where `crl resume` is to go on, the flow is killed while it is away."""
    everything = "everything"
    """kill -9 of server, worker, flow and engine at once."""


class Way(StrEnum):
    """How the run is continued."""

    retry = "retry"
    resume = "resume"


INSIDE = (Fault.exception, Fault.engine, Fault.hang, Fault.disk)
"""Faults that the stage brings about itself; for the others it waits to be broken from outside."""
SAID = {
    Fault.exception: EXCEPTION,
    Fault.engine: "SIGKILL",
    Fault.hang: "time limit",
    Fault.disk: "no space was left",
}
"""What the message of the failed flow run, which the UI shows in its list, says."""


@dataclass(eq=False)
class Segment:
    """One experiment of its own name, broken in `places` in turn. `halt` is where it ends early, by a failure."""

    operation: Operation
    finished: Path
    fault: Fault
    way: Way
    places: tuple[str, ...]
    halt: str | None = None
    retries: int = 0
    step: int = 0
    run_id: str = ""
    run_ids: list[str] = field(default_factory=list)
    pressed: int = 0
    """Times that Retry was pressed again because the server was busy."""
    killed: int = 0
    """Times that this flow run was killed."""
    _seen: dict[str, Identity] = field(default_factory=dict)
    _resumed: int = -1

    def __post_init__(self) -> None:
        first = self.places[0].replace("/", "-")
        self.name = f"{self.fault}-{self.way}-{first}"
        self.folder = self.operation.home / self.name
        self.folder.mkdir()
        self.runs = self.folder / "disk" if self.fault is Fault.disk else self.operation.runs
        self.path = self.runs / self.name
        self.expected = digests(self.finished)
        kind = self.fault.value if self.fault in INSIDE else "hold"
        self.mishap = Mishap(kind, self.places, str(self.folder), self.halt)

    # -- the course of it ------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """Where it is broken now."""
        return self.places[self.step]

    @contextlib.contextmanager
    def prepared(self) -> Iterator[Segment]:
        """Inside, the experiment lies in its place, made up to the stage that is broken first."""
        with small_disk(self.runs) if self.fault is Fault.disk else contextlib.nullcontext():
            copy_run(self.finished, self.runs, self.name, parse_key(self.places[0]))
            self.operation.add_limit(self.name)
            self._seen = identities(self.path)
            self._since = len(Journal(self.path).read())
            yield self

    def begin(self) -> None:
        """A flow run that comes to the place: a new one, or the broken one by Retry."""
        if self.run_id and self.way is Way.retry:
            if self._goes_on():
                return
            self.operation.retry(self.run_id)
            return
        round_number = parse_key(self.place)[0]
        settings = experiment(
            name=self.name,
            runtime__retries=self.retries,
            runtime__min_free_gigabytes=0,
            runtime__stage_time_limit_seconds=scaled(HANG_LIMIT_SECONDS) if self.fault is Fault.hang else 3600,
        )
        self.run_id = self.operation.run(
            "train/train",
            {"experiment": as_parameter(settings), "rounds": ROUNDS - max(round_number - 1, 0)},
            variables={**self.mishap.variables(), "CRL_RUNS": str(self.runs)},
            name=f"{self.name}-{self.step}",
        )
        self.run_ids.append(self.run_id)
        self.killed = 0

    def wait_reached(self) -> None:
        """Until the mishap strikes, or holds, the stage."""
        reached = self.mishap.reached

        def ready() -> bool:
            if reached(self.place):
                return True
            if self.operation.server_answers():
                current = self.operation.flow_run(self.run_id)
                said = (current["state"] or {}).get("message") or ""
                if said.startswith(NOT_SUBMITTED) and "503" in said and self.pressed < PATIENT_PRESSES:
                    # The database was busy, which a person answers with another press.
                    self.pressed += 1
                    self.operation.retry(self.run_id)
                    return False
                early = self.operation.has_ended(current) and not reached(self.place)
                assert not early, f"{self.name}: {self.place} was not reached: {current['state_type']}: {said}"
            return False

        wait_until(ready, lambda: f"{self.name} reached {self.place}", every=0.25)

    def wait_dead(self) -> None:
        """Until the server knows that the flow run ended, and why; no process of it lives."""
        if self._goes_on():
            return
        if self.fault in INSIDE:
            ended = self.operation.wait_for(self.run_id)
            said = (ended["state"] or {}).get("message") or ""
            assert ended["state_type"] == "FAILED", f"{self.name}: {ended['state_type']}: {said}"
            assert SAID[self.fault] in said, f"{self.name}: {said}"
        else:
            self.operation.wait_for(self.run_id, "CRASHED", "FAILED", seconds=CRASHED_SECONDS)
        self.no_orphans()
        if self.fault is Fault.flow:
            self.killed += 1
            told = partial(self.operation.worker_is_done_with, self.run_id, self.killed)
            wait_until(told, f"the worker has told of the end of {self.name}")

    def no_orphans(self) -> None:
        """No process of the flow run lives; the worker's own hook, which tells of a crash, is none of it."""

        def alive() -> list[str]:
            lines = [" ".join(command_line(each)) for each in self.operation.flow_processes(self.run_id)]
            return [line for line in lines if line and " hook " not in line]

        wait_until(lambda: not alive(), lambda: f"no process of {self.name} lives: {alive()}", ORPHAN_SECONDS)

    def look(self) -> None:
        """What was complete is as it was; the broken stage is not complete, the one broken before it is."""
        self._seen = check_kept(self.path, self._seen, self.expected)
        whole = self._goes_on() or self._resumed == self.step
        assert whole or self.place not in self._seen, f"{self.place} was committed although it broke"
        broken_before = [place for place in self.places[: self.step] if place not in self._seen]
        assert not broken_before, f"continued, but {broken_before} is not complete"

    def mend(self) -> None:
        """What a person does before going on: here, make room on the disk."""
        (self.runs / BALLAST).unlink(missing_ok=True)

    def resume(self) -> None:
        """`crl resume` without a server, as far as the next place to break; not again where that was done already."""
        if self._resumed == self.step:
            return
        self._resumed = self.step
        after = self.places[self.step + 1] if self.step + 1 < len(self.places) else self.halt
        mishap = Mishap("exception", (), str(self.folder), after)
        said = self.operation.resume_without_server(
            self.name, 1 if after else 0, {**mishap.variables(), "CRL_RUNS": str(self.runs)}
        )
        assert after is None or HALT in said, said[-2000:]

    def go_on(self) -> None:
        """Continue in its way for the last time: asks for the Retry, or runs `crl resume` to its end."""
        self.mend()
        if self.way is Way.resume:
            self.resume()
        elif not self._goes_on():
            self.operation.retry(self.run_id)

    def arrive(self) -> None:
        """Wait until it has ended after :meth:`go_on`, and look at what came out."""
        if self.way is Way.retry:
            ended = self.operation.wait_for(self.run_id)
            said = (ended["state"] or {}).get("message") or ""
            wanted = "FAILED" if self.halt else "COMPLETED"
            assert ended["state_type"] == wanted and (not self.halt or HALT in said), f"{self.name}: {ended['state']}"
        self.no_orphans()
        self._seen = check_kept(self.path, self._seen, self.expected)
        missing = [place for place in self.places if place not in self._seen]
        assert not missing, f"{missing} is not complete"
        check_journal(self.path, self._since)
        if self.halt is None:
            assert digests(self.path) == self.expected
            assert leftovers(self.path) == []
            assert verify(self.path) == []

    def _goes_on(self) -> bool:
        """Whether the fault is one that a flow run survives."""
        return self.fault is Fault.server and self.way is Way.retry


def break_from_outside(operation: Operation, fault: Fault, segments: list[Segment]) -> None:
    """Bring the fault about, for every segment at once where it is one of the whole machine."""
    match fault:
        case Fault.flow:
            for segment in segments:
                operation.kill_flow(segment.run_id)
        case Fault.worker:
            operation.kill_worker()
            for segment in segments:
                operation.kill_flow(segment.run_id)
            operation.start_worker()
        case Fault.server:
            operation.stop_server()
            for segment in segments:
                if segment.way is Way.resume:
                    operation.kill_flow(segment.run_id)
                    segment.no_orphans()
                    segment.look()
                    segment.resume()
                else:
                    segment.mishap.go(segment.place)
            time.sleep(3.0)
            operation.start_server()
            if any(segment.way is Way.resume for segment in segments):
                operation.set_up()  # whoever types `make ui` again
        case Fault.everything:
            operation.kill_everything()
            operation.start_server()
            operation.set_up()
            operation.start_worker()
        case _:
            pass


def nothing_runs_for_ever(operation: Operation, before: Set[str] = frozenset()) -> None:
    """Every flow run and task run has ended, or does within the time that a dead one takes to be noticed.

    Not those that lived `before`: they are another test's, which failed.
    """

    def living() -> list[str]:
        return [each for each in operation.still_living() if each not in before]

    wait_until(
        lambda: not living(),
        lambda: "every flow run and task run had ended; these go on:\n" + "\n".join(living()),
        CRASHED_SECONDS,
        every=2.0,
    )
