"""What a round costs beside a GRPO round of its shape: one that plays the same episodes and updates the actor on them.

Held-out evaluation is in neither: both would play it.
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.report.cells import NOTHING, count
from crl.report.sections import Rows
from crl.report.summary import RoundSummary

_GRPO = ("plan", "collect", "credit")
"""Stages of such a round, before its update."""


def cost_rows(summaries: Sequence[RoundSummary]) -> Rows:
    """Tokens that models wrote, and seconds, of each round that is over, each with its multiple of a GRPO round's."""
    rows = []
    for each in summaries:
        episodes = each.health.get("episode_tokens_sampled")
        if episodes is None or not each.seconds:
            continue
        written = sum(each.health.get(f"{role}_tokens_sampled", 0.0) for role in ("actor", "extractor"))
        update = next((name for name in each.seconds if name.startswith("update_")), "")
        grpo = sum(each.seconds.get(name, 0.0) for name in (*_GRPO, update))
        seconds = sum(taken for name, taken in each.seconds.items() if name != "evaluate")
        rows.append(
            {
                "round": each.label,
                "tokens of episodes": count(int(episodes)),
                "of all": count(int(written)),
                "times GRPO's": _times(written, episodes),
                "seconds": f"{seconds:.1f}",
                "times": _times(seconds, grpo),
            }
        )
    return rows


def _times(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else NOTHING
