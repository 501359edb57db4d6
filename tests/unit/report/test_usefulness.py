"""Usefulness of a bank's entries from their scores: order, intervals and classes."""

from __future__ import annotations

import dataclasses

import pytest

from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.records import EntryScore
from crl.report.bank import EntryUse, entry_uses
from crl.report.success import Rate, wilson
from tests.unit.report.builder import bank_entry

RECORD = {
    "sure": (40, 36),
    "likely": (10, 10),
    "lucky": (1, 1),
    "even": (10, 5),
    "unlucky": (1, 0),
    "bad": (40, 4),
    "gone": (3, 3),
    "rewritten": (30, 30),
}
"""Episodes guided and won, by entry."""


def scores() -> list[EntryScore]:
    return [
        EntryScore(
            entry_id=name,
            content_digest="of earlier words" if name == "rewritten" else text_digest(f"text of {name}"),
            uses=uses,
            mean_outcome=2 * won / uses - 1,
            last_used_round=4,
        )
        for name, (uses, won) in RECORD.items()
    ]


def bank() -> Snapshot:
    names = [name for name in RECORD if name != "gone"] + ["unused"]
    entries = [
        dataclasses.replace(bank_entry(1, f"text of {name}", 1), entry_id=name, order=number)
        for number, name in enumerate(names)
    ]
    return Snapshot.of(4, entries)


def test_what_chance_explains_is_not_listed() -> None:
    texts = {each.content_digest: f"text of {each.entry_id}" for each in bank().entries()}
    found = entry_uses(bank(), scores(), lambda rows: texts)
    assert [each.entry_id for each in found.helpful] == ["sure", "likely"], (
        "an entry that won its one episode may be any"
    )
    assert [each.entry_id for each in found.harmful] == ["bad"]
    assert [each.entry_id for each in found.most_used] == ["bad", "sure", "even", "likely", "lucky", "unlucky"]
    assert found.helpful[0].text == "text of sure" and found.helpful[0].mean == pytest.approx(0.8)
    assert (found.entries, found.used, found.gone, found.open) == (8, 6, 2, 3)
    outcome, uses = found.charts
    assert {row[0]: sum(map(float, row[1:])) for row in outcome.rows} == {
        "0 %": 1, "1–39 %": 1, "40–60 %": 1, "61–99 %": 1, "100 %": 2,
    }  # fmt: skip
    assert {row[0]: float(row[1]) for row in uses.rows} == {"none": 2, "1": 2, "2–4": 0, "5–15": 2, "16+": 2}


def test_the_interval_is_that_of_the_share_on_the_scale_of_outcomes() -> None:
    standing = EntryUse("e", "f", "t", 1, Rate(3, 8))
    low, high = wilson(3, 8)
    assert standing.interval == pytest.approx((2 * low - 1, 2 * high - 1)) and standing.mean == -0.25
