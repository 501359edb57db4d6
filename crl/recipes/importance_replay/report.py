"""Importance-weighted replay, round by round: the buffer, what is drawn of it, and what probes say of the updates.

The figures are those of the stage `health` (`health.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.report.cells import count, plain, signed
from crl.report.sections import Section
from crl.report.summary import RoundSummary


def replay_rows(summaries: Sequence[RoundSummary]) -> list[dict[str, str]]:
    """One row per round with a replay buffer."""
    return [
        {
            "round": each.label,
            "buffer": count(each.health.get("replay_buffer")),
            "drawn": count(each.health.get("replay_distinct")),
            "mean age": plain(each.health.get("replay_age_mean")),
            "mean score": plain(each.health.get("score_mean")),
            "probe gain": signed(each.health.get("probe_gain")),
            "probe games": count(each.health.get("probe_episodes")),
            "actor loss": plain(each.health.get("actor_loss")),
            "cross-entropy": plain(each.health.get("extractor_loss")),
            "coupling": plain(each.health.get("coupling_loss")),
        }
        for each in summaries
        if "replay_buffer" in each.health
    ]


SECTION = Section(
    charts=(
        ("worth of the samples", True, (
            ("mean", "score_mean", 0), ("largest", "score_max", 2), ("least", "score_min", 1),
        )),
        ("probes: reward after an update less before", False, (("mean", "probe_gain", 0),)),
        ("losses of replay", False, (
            ("actor", "actor_loss", 2), ("cross-entropy", "extractor_loss", 0), ("coupling", "coupling_loss", 1),
        )),
        ("age of what is replayed, in rounds", False, (
            ("mean", "replay_age_mean", 0), ("oldest", "replay_age_max", 2),
        )),
    ),
    tables={"replay and probes": replay_rows},
)  # fmt: skip
