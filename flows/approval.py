"""Waiting for a person inside a flow: the round pauses in the UI until somebody fills in a form, or decides elsewhere.

Prefect is only the window. The decision is a file of the run directory (`crl/run/decisions.py`); what is typed into the
form is written there, and what is written there by `crl approve` wakes the paused run. If both differ, the file holds.

Prefect's own `pause_flow_run` is not used: it fails the run when the server restarts, waits on when the run is
cancelled, and looks at nothing but the server. The state, the form and its input are Prefect's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID, uuid4

import httpx
from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.input import RunInput, keyset_from_paused_state
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Paused, Running
from pydantic import Field, ValidationError, create_model

from crl.engine.driver import Driver, announce
from crl.engine.events import Waits
from crl.errors import BadInput, DecisionMade
from crl.report.diff import proposed_diff
from crl.report.markdown import diff_markdown
from crl.rounds.approvals import PendingApproval, decide
from crl.run.decisions import Decision, load_decision
from flows.present import run_logger, show
from tasks.artifacts import artifact_key, publish

POLL_SECONDS = 2.0
PROPOSAL = "bank-proposal"
"""Kind of the artifact that shows what the round asks for."""
WAITING_NAME = "Awaiting approval"
"""Name of the state of the training run whose round is paused."""
_SHOWN_IN_FORM = 30
"""Changes that the text above the form lists; the artifact lists all of them."""
_UNREACHABLE = (httpx.TransportError, PrefectHTTPStatusError)


class Answer(RunInput):
    """The form."""

    approve: bool = Field(
        True, description="Approve everything but what is listed below. Switched off, the whole round is rejected."
    )
    reject: list[str] = Field([], description="Operations to refuse, by id. Their entries stay as they are.")
    person: str = Field(min_length=1, pattern=r"\S", description="Your name; it is kept in the record.")
    reason: str = Field("", description="Why, in your words; it is kept in the record.")


@dataclass
class _Pause:
    """One paused state of this flow run and the form that belongs to it."""

    run_id: UUID
    form: type[Answer]
    keyset: Any


def wait_for_decision(driver: Driver, round_number: int, stage: str) -> None:
    """Return at once unless a person has to decide before the stage; else pause this flow run until they have.

    Without a server that people can look at, nothing is paused: the stage itself then ends the run with
    ApprovalPending, which `crl approve` and `crl resume` continue. So it does when `runtime.approval_wait_seconds` are
    over, or the pause is cancelled. Raises StaleAttempt where another attempt took the run over meanwhile.
    """
    pending = driver.pending_approval(round_number, stage)
    if pending is None or not _can_pause(driver):
        return
    deadline = time.monotonic() + driver.runtime.approval_wait_seconds
    driver.free_engines(round_number, stage)
    announce(Waits(f"{pending.in_words()}; answer in the UI, or: {pending.command()} --show"))
    with _told_by_parent(pending):
        while pending is not None:
            if not _pause(driver, pending, _published(pending), deadline):
                return
            pending = driver.pending_approval(round_number, stage)


def _can_pause(driver: Driver) -> bool:
    """Whether this is a flow run of a server that people can look at, and may wait for them."""
    return flow_run.id is not None and bool(PREFECT_API_URL.value()) and driver.runtime.approval_wait_seconds > 0


def _pause(driver: Driver, pending: PendingApproval, shown: str, deadline: float) -> bool:
    """Pause once, until there is an answer; says whether to look for a decision again."""
    pause = _begin(pending, shown)
    if pause is None:
        return False
    run_logger().info(
        "%s. Answer with Resume in the UI, or: %s --show", pending.in_words().replace("\n", " "), pending.command()
    )
    reachable = True
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        driver.check(pending.round)
        decision = _decision(pending)
        try:
            if decision is not None:
                _resume(pause, decision)
                return True
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(pause.run_id).state
        except _UNREACHABLE as error:
            if reachable:
                run_logger().warning("the server does not answer (%s); still waiting", error)
            reachable = False
            continue
        reachable = True
        if state is None or state.is_paused():
            continue
        if not state.is_running():
            run_logger().warning("the pause was ended: this run is %s", state.name)
            return False
        _take(pending, pause)
        return True
    run_logger().warning("nobody decided within runtime.approval_wait_seconds; a retry, or `crl resume`, goes on")
    show(Running(), pause.run_id)
    return False


def _begin(pending: PendingApproval, shown: str) -> _Pause | None:
    """Set the state and save the form; None where the server does not let this run pause (it is being cancelled)."""
    run_id = UUID(flow_run.id)
    # A key of its own each time: Prefect lets a key pause once, and a retried round is the same flow run.
    state: State[Any] = Paused(message=pending.in_words(), reschedule=False, pause_key=str(uuid4()))
    keyset: Any = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = keyset
    form = _form(pending).with_initial_data(description=shown)
    form.save(keyset, flow_run_id=run_id)  # first, so that nobody sees a paused run without its form
    with get_client(sync_client=True) as client:
        set_to = client.set_flow_run_state(run_id, state).state
    if set_to is None or not set_to.is_paused():
        run_logger().warning("this run cannot be paused: it is %s", "gone" if set_to is None else set_to.name)
        return None
    return _Pause(run_id, form, keyset)


def _form(pending: PendingApproval) -> type[Answer]:
    """The form of a round: what may be refused is a choice of ids."""
    field: Any = Answer.model_fields["reject"]
    if not pending.choices:
        return Answer
    literal: Any = Literal
    made: type[Answer] = create_model("Answer", __base__=Answer, reject=(list[literal[pending.choices]], field))
    return made


def _decision(pending: PendingApproval) -> Decision | None:
    """The decision about what is asked, once somebody made it anywhere."""
    decision = load_decision(pending.run_path, pending.round)
    return decision if decision is not None and decision.shown == pending.shown else None


def _resume(pause: _Pause, decision: Decision) -> None:
    """Resume the run with the decision that was made elsewhere as its input; an answer typed meanwhile is mentioned."""
    answer = {
        "approve": decision.approve,
        "reject": list(decision.reject),
        "person": decision.person,
        "reason": decision.reason or "",
    }
    with get_client(sync_client=True) as client:
        client.resume_flow_run(pause.run_id, run_input=answer)
    typed = _answer(pause)
    if typed is not None and typed.model_dump() != answer:
        run_logger().warning("the answer from the UI is not used: %s before", decision.in_words())
    run_logger().info("decided: %s", decision.in_words())


def _take(pending: PendingApproval, pause: _Pause) -> None:
    """Write the answer from the UI down; one that cannot be used is reported, and the run pauses again."""
    answer = _answer(pause)
    if answer is None:
        run_logger().warning("the run was resumed without an answer; it pauses again")
        return
    try:
        decision = decide(
            pending, approve=answer.approve, reject=answer.reject, person=answer.person, reason=answer.reason
        )
        run_logger().info("decided: %s", decision.in_words())
    except DecisionMade as error:
        run_logger().warning("the answer from the UI is not used: %s", error.found)
    except BadInput as error:
        run_logger().error("the answer from the UI cannot be used: %s", error)


def _answer(pause: _Pause) -> Answer | None:
    """What was typed into the form; None where nothing was."""
    try:
        loaded: Any = pause.form.load(pause.keyset, flow_run_id=pause.run_id)
        return cast(Answer, loaded)
    except ValidationError:
        return None


def _published(pending: PendingApproval) -> str:
    """Publish what is asked as an artifact; returns what is above the form, in Markdown.

    An artifact that cannot be published is no reason to stop.
    """
    try:
        diff = proposed_diff(pending.run_path, pending.round)
    except BadInput:  # a decision about something else than a bank
        return pending.in_words()
    name = pending.run_path.name
    publish(
        name,
        f"What round {diff.round} asks of the bank, before a person decided",
        {PROPOSAL: lambda: diff_markdown(diff, name, max_changes=len(diff.changes))},
    )
    more = f"\n\nAll of it: artifact `{artifact_key(name, PROPOSAL)}`." if len(diff.changes) > _SHOWN_IN_FORM else ""
    return diff_markdown(diff, name, max_changes=_SHOWN_IN_FORM) + more


@contextlib.contextmanager
def _told_by_parent(pending: PendingApproval) -> Iterator[None]:
    """The training run shows in lists that one of its rounds waits, and where to answer."""
    parent = flow_run.parent_flow_run_id
    where = f"open the paused run {flow_run.name!r} and press Resume" if parent else ""
    message = f"{pending.in_words()}; {where}, or {pending.command()} --show"
    show(Running(name=WAITING_NAME, message=message), parent)
    yield
    show(Running(), parent)  # not where this ends with an error: the parent then ends too
