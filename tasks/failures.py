"""What Prefect keeps of an error: one line that says what was found, where, and what to do; the log has it in full.

What tasks and flows log is shown as it is: a control character is its escape, in the UI and on any terminal. Errors of
other packages, and lines that an engine wrote, may quote what models and environments said.
"""

from __future__ import annotations

import logging
from typing import Any

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Failed

from crl.errors import ApprovalPending, CrlError
from crl.text.unicode import escaped

_LONGEST = 1500
"""Characters of a message: some errors list every key of a file."""
_PLACE = "_arose_in"
_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.flows")
"""Whatever a run logs is said to one of these."""


def failed(error: CrlError, more: str = "") -> State[Any]:
    """The failed state to return from a flow or task; its result raises the error. `more` ends its message.

    Prefect's own message for a raised error begins with words that are the same for all of them.
    """
    # Retry must be offered, so the type is that of a failure; the name says that nothing failed.
    named: dict[str, Any] = {"name": "Awaiting approval"} if isinstance(error, ApprovalPending) else {}
    return Failed(message=f"{one_line(error)}. {more}" if more else one_line(error), data=error, **named)


def log_error(error: CrlError) -> None:
    """The whole error in the log of the current run."""
    get_run_logger().error("%s: %s", type(error).__name__, error)


def located(error: CrlError, where: str) -> None:
    """Remember where in the run an error arose (`round 7, collect`); the first one given is kept."""
    error.__dict__.setdefault(_PLACE, where)  # there it crosses processes with the error; its notes hold the traceback


def one_line(error: CrlError) -> str:
    """`DataCheckFailed (round 7, collect): what was found. Where: … What to do: …`"""
    place = error.__dict__.get(_PLACE)
    head = f"{type(error).__name__} ({place})" if place else type(error).__name__
    parts = [f"{head}: {_flat(error.found)}"]
    for label, text in (("Expected", error.expected), ("Where", error.where), ("What to do", error.next_step)):
        if text:
            parts.append(f"{label}: {_flat(text)}")
    line = escaped(". ".join(part.rstrip(".") for part in parts))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


def _flat(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":; ", ": ")


class Escaping(logging.Filter):
    """Escapes the message of a record, and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass the record on, changed where anything in it is unseen."""
        told = record.getMessage()
        if escaped(told) != told:
            record.msg, record.args = escaped(told), ()
        if record.exc_info:
            record.exc_text = escaped(record.exc_text or logging.Formatter().formatException(record.exc_info))
        return True


def escape_logs() -> None:
    """Have everything escaped that runs log in this process; again is the same as once."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, Escaping) for each in logger.filters):
            logger.addFilter(Escaping())
