"""DreamGym, round by round: how true the experience model is, what was played in it, and what real steps were spent.

The metrics are those of the stage `health` (`health.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from crl.report.cells import count, percent, signed
from crl.report.sections import Section, metric_table
from crl.report.summary import RoundSummary

TRUTH = (
    ("seen", "seen_share"),
    ("next state", "observation_agreement"), ("reward", "reward_accuracy"), ("ending", "ending_accuracy"),
    ("unseen next state", "unseen_observation_agreement"), ("unseen reward", "unseen_reward_accuracy"),
    ("unseen ending", "unseen_ending_accuracy"),
)  # fmt: skip
"""Columns of how true the model is, as (name, metric)."""


dream_rows = metric_table(
    "real_steps",
    {
        "real steps": ("real_steps", count),
        "in all": ("real_steps_total", count),
        "synthetic": ("synthetic_share", percent),
        "malformed": ("dream_malformed", percent),
        "new tasks": ("new_tasks", count),
    },
)
"""One row per round that counts real steps."""


def truth_rows(summaries: Sequence[RoundSummary]) -> list[dict[str, str]]:
    """One row per round that knows how true its experience model is: of all held-out steps, and of the unseen ones
    where they are enough. An alarm of the stage `validate` is marked: the model is below a minimum."""
    return [
        {
            "round": each.label + (" !" if _alarmed(each) else ""),
            **{name: percent(each.health.get(metric)) for name, metric in TRUTH},
            "drift": signed(each.health.get("drift")),
        }
        for each in summaries
        if "observation_agreement" in each.health or _alarmed(each)
    ]


def _alarmed(summary: RoundSummary) -> bool:
    return any("(validate: " in alarm for alarm in summary.alarms)


SECTION = Section(
    charts=(
        ("held-out steps that the experience model predicts", True, (
            ("next observation", "observation_agreement", 1), ("outcome and reward", "reward_accuracy", 0),
            ("outcome of last steps", "ending_accuracy", 2),
        )),
        ("unseen held-out steps that the experience model predicts", True, (
            ("next observation", "unseen_observation_agreement", 1),
            ("outcome and reward", "unseen_reward_accuracy", 0), ("outcome of last steps", "unseen_ending_accuracy", 2),
        )),
        ("synthetic share of the actor's batches", True, (("of what is trained", "synthetic_share", 1),)),
        ("episodes in the pools", False, (
            ("real", "pool_episodes_real", 0), ("synthetic", "pool_episodes_synthetic", 1),
        )),
        ("training episodes that succeed", True, (
            ("in the experience model", "success_synthetic", 1), ("in the real environment", "success_real", 0),
        )),
        ("real environment steps", False, (("so far", "real_steps_total", 0), ("of the round", "real_steps", 1))),
    ),
    tables={"experience model": dream_rows, "experience model on held-out steps": truth_rows},
)  # fmt: skip
