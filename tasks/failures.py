"""What Prefect keeps of an error: one line that says what was found, where, and what to do; the log has it in full."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Failed

from crl.errors import CrlError

_LONGEST = 1500
"""Characters of a message: some errors list every key of a file."""


def failed(error: CrlError) -> State[Any]:
    """The failed state to return from a flow or task; its result raises the error.

    Prefect's own message for a raised error begins with words that are the same for all of them.
    """
    return Failed(message=one_line(error), data=error)


def log_error(error: CrlError) -> None:
    """The whole error in the log of the current run."""
    get_run_logger().error("%s: %s", type(error).__name__, error)


def placed(error: CrlError, place: str) -> None:
    """Remember where in the run an error arose (`round 7, collect`); the first place told is kept."""
    if not getattr(error, "__notes__", None):
        error.add_note(place)


def one_line(error: CrlError) -> str:
    """`DataCheckFailed (round 7, collect): what was found. Where: … What to do: …`"""
    places = getattr(error, "__notes__", [])
    head = f"{type(error).__name__} ({places[0]})" if places else type(error).__name__
    parts = [f"{head}: {_flat(error.found)}"]
    for label, text in (("Expected", error.expected), ("Where", error.where), ("What to do", error.next_step)):
        if text:
            parts.append(f"{label}: {_flat(text)}")
    line = ". ".join(part.rstrip(".") for part in parts)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


def _flat(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":; ", ": ")
