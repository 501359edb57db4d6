"""Whether experience misleads: guided rollouts against unguided ones of the same groups, over the last rounds.

What one round says is noise, and what was true ten rounds ago is history: the difference of every round counts
:data:`KEPT` times as much in the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from crl.credit.uses import usable
from crl.records import Episode
from crl.rounds.figures import Figures

KEPT = 0.8
MISLEADS = -3.5
"""Standard errors. Without any effect one run of 60 rounds in a hundred gets there (4,000 drawn ones, 4 to 64 rollouts
of each kind per round); on lakes, where three of four notes shown were wrong, all eight trained runs got there between
rounds 4 and 8."""
SUM, VARIANCE, LEAD = "guidance_sum", "guidance_variance", "guidance_lead"


def guidance_figures(episodes: Sequence[Episode], previous: Mapping[str, float]) -> tuple[Figures, dict[str, str]]:
    """(figures, alarms by figure) of a round; `previous` are the figures of the round before, empty before the first.

    Only groups with both kinds count; a round without any says nothing. `guidance_lead` is how far guided rollouts are
    ahead of unguided ones (negative: behind), in standard errors of their difference in success as if both had the
    same. `guidance_sum` and `guidance_variance` are carried on.
    """
    groups: dict[tuple[str, int], dict[bool, list[bool]]] = defaultdict(lambda: {True: [], False: []})
    for episode in filter(usable, episodes):
        groups[episode.family, episode.group][episode.guided].append(episode.success)
    both = [group for group in groups.values() if group[True] and group[False]]
    guided, free = ([won for group in both for won in group[which]] for which in (True, False))
    total, variance = previous.get(SUM, 0.0), previous.get(VARIANCE, 0.0)
    if not both:
        return ({SUM: total, VARIANCE: variance} if variance else {}), {}
    share = (sum(guided) + sum(free)) / (len(guided) + len(free))
    total = KEPT * total + sum(guided) / len(guided) - sum(free) / len(free)
    variance = KEPT**2 * variance + share * (1 - share) * (1 / len(guided) + 1 / len(free))
    figures: Figures = {SUM: total, VARIANCE: variance}
    if not variance:
        return figures, {}
    lead = total / variance**0.5
    told = (
        f"guided rollouts win less than unguided ones of the same groups, lately by {-lead:.1f} standard errors: the "
        "notes mislead the actor. Read them (crl bank show, crl bank why); method.recipe.suppress keeps back what "
        "harms, method.recipe.trial tests notes before they are kept"
    )
    return {**figures, LEAD: lead}, {LEAD: told} if lead < MISLEADS else {}
