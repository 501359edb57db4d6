"""How long the outputs of a role are: what an estimate of time counts with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lengths:
    """One output of a role on average, in tokens."""

    tokens: float
    """All, read and sampled."""
    sampled: float
    """Of them, written by the model."""
    read: float
    """Positions that sampling computes for it: what the prompts of several outputs begin with alike is read once."""
    computed: float
    """Positions that an update computes for it: what several outputs begin with alike is computed once."""
