"""What the tables of rounds say of the actor's gradient and of merging."""

from __future__ import annotations

from crl.report.round_tables import learning_rows, merge_rows
from crl.report.success import Rate
from crl.report.summary import RoundSummary


def test_the_policy_gradient_has_what_the_other_objectives_leave() -> None:
    rows = learning_rows(
        [
            RoundSummary(0, "0"),
            RoundSummary(1, "1", health={"actor_groups_equal": 0.75}),
            RoundSummary(2, "2", health={"actor_groups_equal": 0.25}, shares={"nll": 0.5, "reverse_kl": 0.125}),
        ]
    )
    assert rows == [
        {"round": "1", "groups with an advantage": "25 %", "policy gradient": "–", "self-distillation": "–",
         "internalization": "–"},
        {"round": "2", "groups with an advantage": "75 %", "policy gradient": "37.5 %", "self-distillation": "50 %",
         "internalization": "12.5 %"},
    ]  # fmt: skip


def test_what_merging_did_stands_beside_success_before_and_after() -> None:
    before = RoundSummary(1, "1", with_bank=Rate(3, 16))
    after = RoundSummary(
        2, "2", with_bank=Rate(9, 16), merged={"shown": 7, "keep": 2, "merge": 4, "texts": 2, "drop": 1}
    )
    assert merge_rows([before, after, RoundSummary(3, "3")]) == [
        {"round": "2", "entries shown": "7", "kept": "2", "merged": "4 into 2", "dropped": "1",
         "with bank before": before.with_bank.short, "after": after.with_bank.short}
    ]  # fmt: skip
