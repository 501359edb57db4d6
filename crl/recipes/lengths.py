"""How long the outputs of a role are: what an estimate of time counts with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lengths:
    """One output of a role on average, in tokens."""

    tokens: float
    """Read and sampled."""
    sampled: float
    """Of them, written by the model."""
    computed: float
    """Positions that an update computes for it: what several outputs begin with alike is computed once."""
