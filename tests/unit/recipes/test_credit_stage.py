"""The stage `credit` over whole rounds: whose outputs enter the buffer, and what a repeated text is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.records import BankEvent, BufferItem, Metric, Operation, Sample, UseReward
from tests.unit.recipes.played import Played, experiment


@pytest.mark.parametrize("recipe", ["static_online", "offline_bank"])
def test_a_recipe_that_trains_no_extractor_fills_no_buffer(tmp_path: Path, recipe: str) -> None:
    played = Played(tmp_path, experiment(method__recipe=recipe, method__warm_up_rounds=1), 3)
    for number in (1, 2, 3):
        assert played.rows(BufferItem, "credit", number) == []
        assert not any(row.name.startswith("buffer") for row in played.rows(Metric, "credit", number))


def test_a_duplicate_is_scored_by_the_uses_of_the_entry_it_repeats(tmp_path: Path) -> None:
    """The extractor knows five texts: soon it can only repeat itself, and that is no way out of being scored."""
    changes = {"method__bank__duplicates": "reject", "method__extractor_objective__credit": "running_usefulness"}
    played = Played(tmp_path, experiment(**changes), 4)
    repeated = [
        (number, row) for number in range(1, 5)
        for row in played.rows(BankEvent, "consolidate", number) if row.repeats is not None
    ]  # fmt: skip
    assert len(repeated) > 10
    operations = {row.operation_id: row for number in range(1, 5) for row in played.rows(Operation, "distill", number)}
    first = {
        number: {row.generation_id: row for row in played.rows(BufferItem, "credit", number)} for number in range(1, 5)
    }
    for number, event in repeated:
        item = first[number][operations[event.operation_id or ""].generation_id]
        assert (item.kind, item.uses) == ("used", 0) and item.repeats, "it enters at once, without a use"
    gained = 0
    for number in (2, 3, 4):
        earned: dict[str, list[float]] = {}
        for use in played.rows(UseReward, "credit", number):
            earned.setdefault(use.generation_id, []).append(use.reward)
        for before in first[number - 1].values():
            if before.repeats and before.status == "waiting":
                expected = [
                    reward for each in (before.generation_id, *before.repeats) for reward in earned.get(each, [])
                ]
                now = first[number][before.generation_id]
                assert now.uses == before.uses + len(expected)
                assert now.score_sum == pytest.approx(before.score_sum + sum(expected))
                gained += len(expected)
    assert gained > 10
    trained = {row.generation_id for number in range(1, 5) for row in played.rows(Sample, "credit", number)}
    assert trained & {operations[event.operation_id or ""].generation_id for _, event in repeated}, "and is trained"
