"""Scheduled runs: what they are asked for, and those that were missed.

Prefect lays the parameters of a schedule over those of its deployment as whole values, as its dialog left them: what
nobody touched is `null` or an object with `__prefect_kind` there, and one key of `settings` replaces all of the
deployment's. Here they become what the person meant, before the flow runs.

However many times were missed while the server or the worker was away, one runs: the newest that is due does the work,
and an older one with the same parameters has nothing to add, since either would train the next rounds. A deployment may
have schedules with other parameters, of another experiment: those run, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec
from uuid import UUID

from prefect import State, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ParameterTypeError, SignatureMismatchError
from prefect.logging import get_run_logger
from prefect.states import Cancelled
from prefect.utilities.schema_tools.hydration import HydrationContext, HydrationError, hydrate

from crl.errors import BadInput, CrlError
from flows.parameters import OVERRIDES, SETTINGS, laid_over
from flows.present import flow_runs
from tasks.failures import failed, log_error

P = ParamSpec("P")
Parameters = dict[str, Any]

FILL_IN: dict[str, Any] = {"render_workspace_variables": True, "render_jinja": True, "raise_on_error": True}
"""As the server fills in the form of a run that a person starts."""
_NOT_WORKING = [StateType.CANCELLED, StateType.CANCELLING, StateType.FAILED, StateType.CRASHED]
_SETTLED: dict[str, bool | int | float | str] = {"crl.parameters": "settled"}
"""Label of a scheduled run whose parameters are on the server as it uses them: a Retry uses the same."""


def deployable(function: Callable[P, Any]) -> Callable[P, Any]:
    """The function of a flow that has deployments, which anybody may schedule.

    The flow is made with `validate_parameters=False`: its parameters are checked here, once they are what was meant.
    """
    signature = inspect.signature(function, eval_str=True)

    @wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Any:
        context = FlowRunContext.get()
        if context is None or context.flow is None:
            return function(*args, **kwargs)
        parameters = signature.bind(*args, **kwargs).arguments
        try:
            run = context.flow_run
            if run is not None and run.auto_scheduled and run.deployment_id is not None:
                with get_client(sync_client=True) as client:
                    settled = _settle(client, run)
                if isinstance(settled, State):
                    return settled
                parameters = settled
            try:
                checked = context.flow.validate_parameters(parameters)
            except (ParameterTypeError, SignatureMismatchError) as error:
                raise BadInput(str(error)) from None
        except CrlError as error:
            log_error(error)
            return failed(error)
        return function(**checked)  # type: ignore[call-arg]

    begin.__signature__ = signature  # type: ignore[attr-defined]  # annotations are evaluated where they were written
    return begin


def _settle(client: SyncPrefectClient, run: FlowRun) -> Parameters | State[Any]:
    """What a scheduled run is asked for; or the state that it is to return at once.

    That is where its schedule is gone, or a newer run that does the same is due as well and this is no retry.
    """
    if _is_settled(run):
        return run.parameters
    assert run.deployment_id is not None
    meaning = _Meaning(client, run.deployment_id)
    schedule = meaning.schedule(run)
    if schedule is None:
        return _cancelled("the schedule of this run was deleted before the run began")
    asked = meaning.of(schedule)
    if run.run_count <= 1 and (newer := _newer(client, run, meaning)) is not None:
        return _cancelled(_message(run, newer))
    get_run_logger().info("%s", meaning.sources(schedule))
    client.update_flow_run(run.id, parameters=asked)
    client.update_flow_run_labels(run.id, _SETTLED)
    return asked


def _cancelled(message: str) -> State[Any]:
    get_run_logger().info("%s", message)
    return Cancelled(message=message)


def _is_settled(run: FlowRun) -> bool:
    return _SETTLED.items() <= run.labels.items()


class _Meaning:
    """What the schedules of a deployment ask for, as both are now."""

    def __init__(self, client: SyncPrefectClient, deployment_id: UUID) -> None:
        self._deployment = client.read_deployment(deployment_id)
        self._context = HydrationContext(
            workspace_variables={each.name: each.value for each in client.read_variables()}, **FILL_IN
        )

    def schedule(self, run: FlowRun) -> DeploymentSchedule | None:
        """The schedule that a run comes from; None where there is no such schedule any more."""
        identifier = None if run.created_by is None else run.created_by.id
        return next((each for each in self._deployment.schedules if each.id == identifier), None)

    def of(self, schedule: DeploymentSchedule) -> Parameters:
        """What the schedule asks for. Raises BadInput."""
        return meant(self._deployment.parameters, schedule.parameters, self._context)

    def of_run(self, run: FlowRun) -> Parameters | None:
        """What a run is asked for; None where it will not work, whatever it is asked for."""
        if _is_settled(run):
            return run.parameters
        schedule = self.schedule(run)
        try:
            return None if schedule is None else self.of(schedule)
        except BadInput:
            return None

    def sources(self, schedule: DeploymentSchedule) -> str:
        """Where the parameters come from, in words."""
        own = meant({}, schedule.parameters, self._context)
        keys = [key for name in (SETTINGS, OVERRIDES) for key in own.pop(name, {})]
        set_here = ", ".join(dict.fromkeys([*own, *keys]))
        deployment = f"as the deployment {self._deployment.name!r} has it"
        return f"the schedule sets {set_here}; all else is {deployment}" if set_here else f"everything is {deployment}"


def meant(deployment: Parameters, schedule: Parameters, context: HydrationContext) -> Parameters:
    """The parameters of a deployment, and over them those of a schedule, both as Prefect's forms left them.

    Raises BadInput.
    """
    return laid_over(_filled_in(deployment, context), _filled_in(schedule, context))


def _filled_in(parameters: Parameters, context: HydrationContext) -> Parameters:
    """Values for what the forms have in their place; fields that are empty there are left out."""
    found: Parameters = {}
    for name, value in parameters.items():
        try:
            found |= hydrate({name: value}, context)
        except HydrationError as error:
            raise BadInput(f"{name}: {error}", next_step="correct it in the schedule or the deployment") from None
    return found


def _newer(client: SyncPrefectClient, run: FlowRun, meaning: _Meaning) -> FlowRun | None:
    """The newest scheduled run of the deployment that does what `run` does and was due after it, was not called off and
    has not failed."""
    since = run.expected_start_time
    assert since is not None
    due = {
        "deployment_id": {"any_": [run.deployment_id]},
        "state": {"type": {"not_any_": _NOT_WORKING}},
        "expected_start_time": {
            "after_": since + timedelta(milliseconds=1),
            "before_": datetime.now(UTC),
        },
    }
    wanted = meaning.of_run(run)
    later = (each for each in flow_runs(client, due) if each.auto_scheduled and meaning.of_run(each) == wanted)
    return max(later, key=lambda each: each.expected_start_time or since, default=None)


def _message(older: FlowRun, newer: FlowRun) -> str:
    def due(run: FlowRun) -> str:
        return "unknown" if run.expected_start_time is None else f"{run.expected_start_time:%Y-%m-%d %H:%M} UTC"

    return (
        f"superseded: this run was due at {due(older)} and did not start in time; "
        f"flow run {newer.name!r}, due at {due(newer)}, does the work"
    )
