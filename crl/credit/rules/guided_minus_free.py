"""A use earns its outcome less the mean outcome of the unguided rollouts of the same group.

So an experience is not rewarded for a task that is won without it. Where a group has no unguided rollout nothing is
subtracted; the metric `uses_without_unguided` counts such uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.credit.rules import Round, Rule, Scored
from crl.credit.uses import with_reward
from crl.records import Row


def score(round: Round, before: Sequence[Row]) -> Scored:
    """See the module; nothing is kept."""
    differences = {(row.episode_id, row.entry_id): row.guided_minus_free for row in round.credits}
    uses = []
    for use in round.uses:
        difference = differences.get((use.episode_id, use.entry_id))
        uses.append(use if difference is None else with_reward(use, "guided_minus_free", difference))
    alone = sum(use.basis == "outcome" for use in uses)
    return Scored(uses, round.earned(uses), metrics={"uses_without_unguided": float(alone)})


RULE = Rule(score)
