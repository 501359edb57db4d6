"""A use earns the outcome of its episode, ±1: the paper's rule."""

from __future__ import annotations

from collections.abc import Sequence

from crl.credit.rules import Round, Rule, Scored
from crl.records import Row


def score(round: Round, before: Sequence[Row]) -> Scored:
    """See the module; nothing is kept."""
    return Scored(round.uses, round.earned(round.uses))


RULE = Rule(score)
