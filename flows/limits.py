"""One run of an experiment at a time: the scheduler's slot first, then the lease of the record.

Every experiment has a global concurrency limit of 1 in Prefect, taken strictly: a limit that is missing, switched off
or wider than 1 is an error, never "no lock". The slot is for people and for order (the UI shows who waits for whom);
what really keeps two writers apart is the record's lease, so a slot that the scheduler lost costs nothing but a
warning.

Which limits exist: set-up makes one for every experiment it finds (`python -m flows.setup`), `crl train` one for its
own, and a first run one for an experiment that has no run directory yet.

Who waits for another run does so where people can see it: state, log, and whom it waits for.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import ConcurrencyLeaseHolder, StateType
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Running

from crl.config import Runtime, WhenBusy
from crl.engine.driver import Driver, announce
from crl.engine.events import Remark, Waits
from crl.errors import ConcurrencyLimitMissing, LeaseHeld
from crl.run.directory import RunDirectory
from crl.run.lease import lease_state
from crl.trackers.subscriber import Trackers
from crl.validation.subscriber import Validations
from flows.present import flow_runs, run_logger, show
from tasks.validate import validate

SLOT_LEASE_SECONDS = 60.0
"""A slot whose run died is free again so long after its last renewal; the least that Prefect allows."""
STALE_SECONDS = 2 * SLOT_LEASE_SECONDS
"""A slot is taken to be lost when the record shows no owner for so long: longer than any lease of a slot can last."""
_NOT_NOW = frozenset({423, 503})
"""What the server answers where the slot is taken, and where its database is busy."""
SETUP = "python -m flows.setup"
"""The command that makes what must exist on a server."""
T = TypeVar("T")

STATE_NAME = "Waiting"
POLL_SECONDS = 2.0
_NOBODY = "nobody the record knows of (a slot that a dead run left is free within two minutes)"
_TRAINING = ("train", "resume")
"""Flows that change a run."""
_ALIVE = [StateType.RUNNING, StateType.CANCELLING, StateType.PAUSED]


def limit_name(experiment: str) -> str:
    """Name of an experiment's concurrency limit."""
    return f"crl-{experiment}"


def ensure_limit(experiment: str) -> bool:
    """Make an experiment's limit, or mend one that would not keep two runs apart. Says whether anything was changed."""
    name = limit_name(experiment)
    with get_client(sync_client=True) as client:
        found = _read(client, name)
        if found is None:
            with contextlib.suppress(ObjectAlreadyExists):  # somebody else made it in this moment
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1, active=True))
            return True
        if _fault(found) is None:
            return False
        client.update_global_concurrency_limit(
            name, GlobalConcurrencyLimitUpdate(limit=1, active=True, slot_decay_per_second=0.0)
        )
        return True


@contextlib.contextmanager
def hold(experiment: str, run_path: Path, runtime: Runtime) -> Iterator[Waiting]:
    """Hold the experiment's slot inside the context; while another run holds it, wait or refuse as `runtime` says.

    Take the record's lease soon after: a slot is taken to be lost where the record shows no owner for two minutes.
    Yields what was waited so far, for whoever waits for the lease next. Raises ConcurrencyLimitMissing where the limit
    cannot keep two runs apart, LeaseHeld (naming the owner) where policy or patience says so.
    """
    name = limit_name(experiment)
    waiting = Waiting(experiment, run_path, runtime)
    with contextlib.ExitStack() as stack:
        while not _take(stack, name):
            waiting.wait("the experiment's slot is taken")
            if waiting.unowned_seconds > STALE_SECONDS:
                _free(name)
        yield waiting


@contextlib.contextmanager
def exclusive(run: RunDirectory, runtime: Runtime) -> Iterator[Driver]:
    """The open driver of a run, with slot and lease. Raises as :func:`hold`, and RecordDamaged as the driver does."""
    # Trackers and validations are waited for last: then the lease and the slot are given back already.
    with (
        Validations(run, runtime, say=_say, through=validate) as validations,
        Trackers(run, runtime, warn=run_logger().warning) as trackers,
        hold(run.experiment_name, run.path, runtime) as waiting,
        contextlib.ExitStack() as stack,
    ):
        driver = waiting.until_free(lambda: stack.enter_context(Driver(run, runtime)))
        driver.subscribe(trackers)
        driver.subscribe(validations)
        yield driver


def _say(line: str) -> None:
    """Into the log of the flow run, and to the command line that may have started it."""
    run_logger().warning(line)
    announce(Remark(line))


def _take(stack: contextlib.ExitStack, name: str) -> bool:
    """Take the slot now, or say that it is taken."""
    # Asked first: to Prefect's log, a slot that is tried for and taken is an error.
    if require_limit(name).active_slots:
        return False
    holder = ConcurrencyLeaseHolder(type="flow_run", id=flow_run.id) if flow_run.id else None
    slot = concurrency(
        name,
        occupy=1,
        max_retries=0,  # Prefect's own waiting is silent and up to 30 s between two tries
        lease_duration=SLOT_LEASE_SECONDS,
        strict=True,
        holder=holder,
        # The record's lease keeps others out: a server that restarts must not end a training run.
        raise_on_lease_renewal_failure=False,
    )
    try:
        stack.enter_context(_forgiving(slot))
    except ConcurrencySlotAcquisitionError as error:
        require_limit(name)  # it may have been removed in this moment
        if isinstance(error.__cause__, httpx.HTTPStatusError) and error.__cause__.response.status_code in _NOT_NOW:
            return False
        raise
    # Afterward: `strict` does not mind a limit that is switched off, and one may be changed at any moment.
    require_limit(name)
    return True


def require_limit(name: str) -> GlobalConcurrencyLimitResponse:
    """The limit as it is now. Raises ConcurrencyLimitMissing unless it exists and lets through one run at a time."""
    with get_client(sync_client=True) as client:
        found = _read(client, name)
    fault = "does not exist" if found is None else _fault(found)
    if fault is not None:
        raise ConcurrencyLimitMissing(
            f"the concurrency limit {name} {fault}: nothing would keep two runs of the experiment apart",
            expected="an active limit of 1 without slot decay",
            where="Concurrency in the Prefect UI",
            next_step=f"make it with `{SETUP}`, then retry this run",
        )
    assert found is not None
    return found


def _read(client: Any, name: str) -> GlobalConcurrencyLimitResponse | None:
    try:
        found: GlobalConcurrencyLimitResponse = client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        return None
    return found


def _fault(limit: GlobalConcurrencyLimitResponse) -> str | None:
    if not limit.active:
        return "is switched off"
    if limit.limit != 1:
        return f"lets through {limit.limit} runs at a time"
    if limit.slot_decay_per_second:
        return "gives slots back by itself (slot decay)"
    return None


@contextlib.contextmanager
def _forgiving(slot: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    """A slot that cannot be given back is a warning: its lease ends by itself, and the work is done."""
    slot.__enter__()
    try:
        yield
    finally:
        try:
            slot.__exit__(None, None, None)
        except httpx.HTTPError as error:
            run_logger().warning(
                "the experiment's slot could not be given back (%s); it is free in %.0f s", error, SLOT_LEASE_SECONDS
            )


def _free(name: str) -> None:
    """Free a slot that no lease will ever free (a server that died, or forgot its leases, in the wrong moment).

    The record shows that nobody owns the run; should that be wrong, the record's lease refuses the second writer.
    """
    run_logger().warning(
        "the slot of %s has been taken for %.0f s while the record shows that nobody owns the run: "
        "the slot was lost by the scheduler and is freed now",
        name,
        STALE_SECONDS,
    )
    with get_client(sync_client=True) as client:
        client.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(active_slots=0))


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
