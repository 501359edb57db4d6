"""What a round costs beside a GRPO round of its shape: the table of `crl status` and the report."""

from __future__ import annotations

from crl.report.round_tables import cost_rows
from crl.report.summary import RoundSummary

SECONDS = {
    "plan": 1.0, "collect": 10.0, "distill": 6.0, "consolidate": 1.0, "credit": 1.0, "update_actor": 8.0,
    "update_extractor": 5.0, "health": 1.0, "evaluate": 100.0,
}  # fmt: skip
HEALTH = {"episode_tokens_sampled": 200.0, "actor_tokens_sampled": 250.0, "extractor_tokens_sampled": 100.0}


def test_tokens_and_seconds_are_multiples_of_what_a_round_without_experience_takes() -> None:
    rows = cost_rows(
        [
            RoundSummary(round=0, label="0", seconds={"initialize": 3.0}),
            RoundSummary(round=1, label="1", seconds=SECONDS, health=HEALTH),
            RoundSummary(round=2, label="2", seconds={"plan": 1.0}),
        ]
    )
    assert rows == [
        {
            "round": "1", "tokens of episodes": "200", "of all": "350", "times GRPO's": "1.75",
            "seconds": "33.0", "times": "1.65",
        }
    ]  # fmt: skip


def test_a_round_that_sampled_nothing_has_no_multiple() -> None:
    [row] = cost_rows(
        [RoundSummary(round=1, label="1", seconds={"merge": 1.0}, health={"episode_tokens_sampled": 0.0})]
    )
    assert (row["times GRPO's"], row["times"]) == ("–", "–")
