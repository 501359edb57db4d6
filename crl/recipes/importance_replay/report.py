"""Importance-weighted replay, round by round: the buffer, what is drawn of it, and what probes say of the updates.

The metrics are those of the stage `health` (`health.py`).
"""

from __future__ import annotations

from crl.report.cells import count, plain, signed
from crl.report.sections import Section, metric_table

replay_rows = metric_table(
    "replay_buffer",
    {
        "buffer": ("replay_buffer", count),
        "drawn": ("replay_distinct", count),
        "mean age": ("replay_age_mean", plain),
        "mean score": ("score_mean", plain),
        "reward, last 100": ("reward_mean_100", plain),
        "probe gain": ("probe_gain", signed),
        "probe games": ("probe_episodes", count),
        "actor loss": ("actor_loss", plain),
        "cross-entropy": ("extractor_loss", plain),
        "coupling": ("coupling_loss", plain),
    },
)
"""One row per round with a replay buffer."""


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
