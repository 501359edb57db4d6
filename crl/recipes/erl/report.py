"""Attempts of Experiential RL, round by round: how often it is tried again, what that brings, what the memory does.

The figures are those of the stage `health` (`figures.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.report.cells import count, percent, signed
from crl.report.sections import Section
from crl.report.summary import RoundSummary


def attempt_rows(summaries: Sequence[RoundSummary]) -> list[dict[str, str]]:
    """One row per round with attempts."""
    return [
        {
            "round": each.label,
            "first": percent(each.health.get("success_first")),
            "tried again": percent(each.health.get("gate_rate")),
            "further": percent(each.health.get("success_second")),
            "r2 − r1": signed(each.health.get("retry_gain")),
            "memory read": count(each.health.get("memory_reads")),
            "written": count(each.health.get("memory_writes")),
            "internalized": count(each.health.get("distilled_samples")),
        }
        for each in summaries
        if "gate_rate" in each.health
    ]


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
