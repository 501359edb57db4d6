"""What an environment may also be, beside the protocols of `crl/protocols.py`: for models of it and for curricula.

A wrapper hands them on (`crl/envs/turn_limit.py`, `side_by_side.py`, `isolated.py`); an environment without them is
played all the same.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Explains(Protocol):
    """One that says why a step had the outcome it had, by its own rules. A model of the environment learns from it
    (`dreamgym`); nothing that plays sees it."""

    def why(self, slot: int) -> str | None:
        """Why the last step of a slot led where it did, in one or two sentences; None where there is nothing to say.
        Asked right after the step."""


@runtime_checkable
class Graded(Protocol):
    """One that says how hard its levels are, so that a curriculum can choose."""

    def difficulty(self, slot: int) -> float:
        """How hard the level of a slot is, from 0 to 1, as it began. Asked after a reset."""
