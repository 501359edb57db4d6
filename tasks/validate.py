"""The Prefect task that has Great Expectations validate a round after its commit: beside the flow, not in its way.

A thread calls it (`crl/validation/subscriber.py`). A verdict that is bad, or that could not be had, is a failed task,
which fails no round and no run: the rounds are committed, and only the end of the run waits for it.
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

_LONGEST = 1500
"""Characters of a message: a damaged table may break dozens of rules."""


def validate(run_path: str, round_number: int) -> None:
    """Run the task; whatever becomes of it is in its state."""
    run_validate(run_path, round_number, return_state=True)


@task(name="validate", task_run_name="validate round {round_number}", cache_policy=NO_CACHE, persist_result=False)
def run_validate(run_path: str, round_number: int) -> State[Any]:
    """Have a round validated and publish the verdict. The state is named after it: passed, failed, not validated."""
    logger = get_run_logger()
    verdict = validations_of(run_path).validate(round_number)
    publish_validation(run_path, verdict)
    if verdict.outcome == "passed" and not verdict.alarms:
        logger.info("round %d %s", round_number, verdict.summary())
        return Completed(message=verdict.summary(), name="Passed")
    logger.warning("round %d %s", round_number, verdict.summary())
    for alarm in verdict.alarms:
        logger.warning("alarm: %s", alarm)
    message = escaped("; ".join([verdict.summary(), *verdict.alarms]))[:_LONGEST]
    return Failed(message=message, name="Alarm" if verdict.outcome == "passed" else verdict.outcome.capitalize())
