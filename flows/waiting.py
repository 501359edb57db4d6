"""Waiting for another run of the same experiment, where people can see it: state, log, and whom it waits for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from prefect import get_client
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run
from prefect.states import Running

from crl.config import Runtime, WhenBusy
from crl.engine.driver import announce
from crl.engine.events import Waits
from crl.errors import LeaseHeld
from crl.run.lease import lease_state
from flows.present import run_logger, show
from flows.queries import flow_runs

T = TypeVar("T")

STATE_NAME = "Waiting"
POLL_SECONDS = 2.0
_NOBODY = "nobody the record knows of (a slot that a dead run left is free within two minutes)"
_TRAINING = ("train", "resume")
"""Flows that change a run."""
_ALIVE = [StateType.RUNNING, StateType.CANCELLING, StateType.PAUSED]


class Waiting:
    """The patience of one run: it looks who is in the way, says so each time that changes, and gives up in time."""

    def __init__(self, experiment: str, run_path: Path, runtime: Runtime) -> None:
        self._experiment, self._run_path, self._runtime = experiment, run_path, runtime
        self._began = time.monotonic()
        self._owned_at = time.monotonic()
        self._told: str | None = None

    @property
    def unowned_seconds(self) -> float:
        """How long the record has shown, without a break, that nobody owns the run."""
        return time.monotonic() - self._owned_at

    def wait(self, why: str) -> None:
        """Wait a moment. Raises LeaseHeld when patience has run out, and at once where the policy is to refuse and
        somebody really is in the way."""
        waited = time.monotonic() - self._began
        in_the_way = self._in_the_way()
        who = ", ".join(in_the_way) or _NOBODY
        # What a dead run left is in nobody's way for long: it is no reason to refuse.
        refused = self._runtime.when_busy is WhenBusy.refuse and bool(in_the_way)
        if refused or waited > self._runtime.wait_seconds:
            after = f" after {waited:.0f} s of waiting" if self._told is not None else ""
            raise LeaseHeld(
                f"experiment {self._experiment} is being worked on by {who}; refused{after}",
                expected="one run of an experiment at a time",
                where=str(self._run_path),
                next_step="wait until it ends or cancel it, then retry; or set runtime.when_busy to wait",
            )
        if who != self._told:
            self._told = who
            self._tell(f"waiting for {who}: {why}")
        # Spread, so that several that wait do not ask in step.
        time.sleep(POLL_SECONDS * random.uniform(0.75, 1.25))

    def until_free(self, take: Callable[[], T]) -> T:
        """What `take` gives, tried again while it raises LeaseHeld; then the run is shown as running again."""
        while True:
            try:
                taken = take()
            except LeaseHeld as held:
                if self._runtime.when_busy is WhenBusy.refuse:
                    raise
                self.wait(held.found.splitlines()[0])
            else:
                break
        if self._told is not None:
            run_logger().info("the experiment is free after %.0f s", time.monotonic() - self._began)
            show(Running(), flow_run.id)
        return taken

    def _in_the_way(self) -> list[str]:
        """The flow runs and the process that are in the way."""
        found = [f"flow run {name!r}" for name in self._other_runs()]
        owner = lease_state(self._run_path)
        if owner is not None and owner.live:
            self._owned_at = time.monotonic()
            found.append(f"process {owner.owner.pid} on {owner.owner.host} ({owner.owner.command})")
        return found

    def _other_runs(self) -> list[str]:
        wanted = {
            "tags": {"all_": [self._experiment]},
            "state": {"type": {"any_": _ALIVE}},
            "parent_task_run_id": {"is_null_": True},
        }
        with get_client(sync_client=True) as client:
            runs = flow_runs(client, wanted, flows=_TRAINING)  # an evaluation is in nobody's way
        return sorted(run.name for run in runs if str(run.id) != flow_run.id and run.state_name != STATE_NAME)

    def _tell(self, text: str) -> None:
        run_logger().info("%s", text)
        announce(Waits(text))
        show(Running(name=STATE_NAME, message=text), flow_run.id)
