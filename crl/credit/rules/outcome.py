"""A use earns the outcome of its episode, ±1: the paper's rule."""

from __future__ import annotations

from collections.abc import Sequence

from crl.credit.rules import Round, Rule, Scored
from crl.records import Row, UseReward


def by_outcome(round: Round) -> list[UseReward]:
    """The uses as rows."""
    return [use.rewarded("outcome", use.outcome) for use in round.uses]


def score(round: Round, before: Sequence[Row]) -> Scored:
    """See the module; nothing is kept."""
    uses = by_outcome(round)
    return Scored(uses, round.earned(uses))


RULE = Rule(score)
