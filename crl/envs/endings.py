"""How an episode ended, in words: they follow what the last action did. And that nothing is stepped after its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from crl.protocols import StopReason

ENDINGS: Mapping[StopReason, str] = {
    StopReason.success: "The goal is reached.",
    StopReason.failure: "The game is over.",
    StopReason.turn_limit: "No turns are left.",
}


class Slot(Protocol):
    """An episode of a wave."""

    done: bool


def check_running(slots: Sequence[Slot], indices: Iterable[int]) -> None:
    """Raise RuntimeError where one of the slots to be stepped is done."""
    for index in indices:
        if slots[index].done:
            raise ended(index)


def ended(index: int) -> RuntimeError:
    """The error of a step after the end."""
    return RuntimeError(f"slot {index} is done; reset before stepping it again")
