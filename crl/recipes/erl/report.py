"""Attempts of Experiential RL, round by round: how often it is tried again, what that brings, what the memory does.

The metrics are those of the stage `health` (`health.py`).
"""

from __future__ import annotations

from crl.report.cells import count, percent, signed
from crl.report.sections import Section, metric_table

attempt_rows = metric_table(
    "gate_rate",
    {
        "first": ("success_first", percent),
        "tried again": ("gate_rate", percent),
        "further": ("success_second", percent),
        "r2 − r1": ("retry_gain", signed),
        "memory read": ("memory_reads", count),
        "written": ("memory_writes", count),
        "internalized": ("distilled_samples", count),
    },
)
"""One row per round with attempts."""


SECTION = Section(
    charts=(
        ("first and further attempts that succeed", True, (
            ("first", "success_first", 1), ("further", "success_second", 0), ("any", "success_best", 2),
        )),
        ("attempts tried again", True, (("share of the first ones", "gate_rate", 1),)),
        ("reward gained by trying again", False, (("r2 − r1", "retry_gain", 0),)),
        ("reflections and memory", False, (
            ("that read a memory", "memory_reads", 0), ("that entered it", "memory_writes", 2),
            ("attempts internalized", "distilled_samples", 1),
        )),
    ),
    tables={"attempts and reflections": attempt_rows},
)  # fmt: skip
