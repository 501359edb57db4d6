"""A text that won games of a round is proven in it: what is distilled from these games, or merged, replaces nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest

from crl.audit.audit import problems_of
from crl.records import BankEvent, Credit, EntryScore, Operation
from crl.report.diff import load_proposal
from tests.unit.recipes.played import Played, Policy, Services, experiment

SETTINGS = {
    "method__recipe__bank__proven": {"uses": 1, "outcome": 0.0},
    "method__recipe__merge__every": 2,
    "method__recipe__bank__duplicates": "reject",
}


def rewriting(read: str, generator: np.random.Generator) -> str:
    """Rewrite what guided an episode, add a text to what did not; merge the first two of all that are shown."""
    text = f"{generator.choice(['win', 'lose'])} {generator.integers(1000)}"
    if "MERGE n,m" in read:
        return f"MERGE 1,2: {text}"
    return f"UPDATE: {text}" if re.search(r"Advice: (win|lose)", read) else f"ADD: {text}"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    made = experiment(**SETTINGS)
    services = Services(made)
    services._policies["extractor"] = Policy(rewriting)
    return Played(tmp_path_factory.mktemp("proven"), made, 2, services)


def test_what_is_first_proven_in_a_round_is_not_replaced_in_it(played: Played) -> None:
    uses: dict[str, list[float]] = {}
    for credit in played.rows(Credit, "credit", 2):
        uses.setdefault(credit.entry_id, []).append(credit.outcome)
    assert played.rows(EntryScore, "credit", 1) == [], "nothing guided in round 1"
    proven = {name for name, outcomes in uses.items() if sum(outcomes) >= 0}
    asked = [row for stage in ("distill", "merge") for row in played.rows(Operation, stage, 2)]
    events = {row.operation_id: row for row in played.rows(BankEvent, "consolidate", 2)}
    updates = {row.operation_id: row for row in asked if row.kind == "update"}
    on_proven = [events[name] for name, row in updates.items() if row.entry_id in proven]
    assert any(event.reason == "waits_beside" for event in on_proven)
    assert {event.kind for event in on_proven} <= {"add", "rejected"}
    others = [events[name] for name, row in updates.items() if row.entry_id not in proven]
    assert any(event.kind == "update" for event in others), "what lost is replaced at once"
    merges = [row for row in asked if row.kind == "merge"]
    assert merges
    for row in merges:
        taken = events[row.operation_id]
        assert (taken.kind == "rejected") or not proven.intersection(row.parents)


def test_the_record_tells_the_same_bank_again(played: Played) -> None:
    again = load_proposal(played.run, 2).applied()
    recorded = played.rows(BankEvent, "consolidate", 2)
    assert [(row.kind, row.operation_id, row.reason) for row in again.events] == [
        (row.kind, row.operation_id, row.reason) for row in recorded
    ]
    assert problems_of(played.run, played.recipe) == []
