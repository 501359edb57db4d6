"""The Prefect task that has Great Expectations validate a round after it was committed: beside the flow, not in its way.

It is called by a thread (`crl/validation/subscriber.py`). A verdict that is bad, or that could not be had, is a failed
task, which fails no round and no run: the rounds are committed, and nothing waits for it but the end of the run.
"""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from crl.text.unicode import escaped
from crl.validation.subscriber import validations_of
from tasks.artifacts import publish_validation


def validate(run_path: str, round_number: int) -> None:
    """Run the task; whatever becomes of it is in its state."""
    run_validate(run_path, round_number, return_state=True)


@task(name="validate", task_run_name="validate round {round_number}", cache_policy=NO_CACHE, persist_result=False)
def run_validate(run_path: str, round_number: int) -> State[Any]:
    """Have a round validated and publish the verdict. The state says it: passed, failed, or not validated and why."""
    verdict = validations_of(run_path).validate(round_number)
    publish_validation(run_path, verdict)
    alarms = verdict.alarms
    get_run_logger().log(30 if alarms or verdict.outcome != "passed" else 20, "round %d: %s", round_number, verdict.told())
    for alarm in alarms:
        get_run_logger().warning("alarm: %s", alarm)
    if verdict.outcome == "passed" and not alarms:
        return Completed(message=verdict.told())
    return Failed(message=escaped("; ".join([verdict.told(), *alarms]))[:1500], name=verdict.outcome.capitalize())
