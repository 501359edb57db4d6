"""Operations that a person refuses: nothing of them reaches the bank, and nothing comes in that they were not shown."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.consolidate import Rules, consolidate
from crl.bank.replay import replay
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig
from tests.unit.bank.test_consolidate import ROUND, entry, held, operation, rounds

WHY = "rejected by Ada: not true"


def apply(previous, operations, refused=(), scores=(), **config):
    return consolidate(
        Snapshot.of(ROUND - 1, previous), operations, scores, Rules(BankConfig(**config), 50), round=ROUND,
        refused=dict.fromkeys((item.operation_id for item in refused), WHY),
    )  # fmt: skip


def test_a_refused_operation_is_an_event_with_the_reason_and_the_rest_is_applied():
    old = entry("a", "A", 0)
    bad, good = operation("update", "a", "worse"), operation("add", "n", "better")
    result = apply([old], [bad, good], [bad])
    assert [(event.kind, event.operation_id, event.reason) for event in result.events] == [
        ("rejected", bad.operation_id, WHY),
        ("add", good.operation_id, None),
    ]
    assert held(result)[0] == old and result.new_texts.keys() == {held(result)[1].content_digest}
    assert result.events[0].before_digest == result.events[0].after_digest == old.content_digest


def test_a_refused_merge_keeps_its_parents_and_a_refused_drop_its_entry():
    before = [entry("a", "A", 0), entry("b", "B", 1), entry("c", "C", 2)]
    merged, dropped = operation("merge", "m", "both", parents=["a", "b"]), operation("drop", "c")
    result = apply(before, [merged, dropped], [merged, dropped])
    assert held(result) == before and not result.changes


def test_the_twin_of_a_refused_text_does_not_slip_in_for_it():
    first, twin = operation("add", "n", "same"), operation("add", "o", "same")
    result = apply([], [first, twin], [first])
    assert held(result) == []
    assert [event.reason for event in result.events] == [WHY, "duplicate"]
    assert result.events[1].repeats is None, "nothing in the bank holds the text"
    old = entry("a", "same")
    result = apply([old], [operation("drop", "b"), twin], [first])
    assert result.events[1].repeats == "a"


def test_what_was_built_on_a_refused_entry_falls_with_it():
    made, changed = operation("add", "n", "new"), operation("update", "n", "newer")
    result = apply([], [made, changed], [made])
    assert [event.reason for event in result.events] == [WHY, "unknown_entry"]


@settings(deadline=None, max_examples=40)
@given(rounds())
def test_refusing_everything_leaves_the_bank_as_it_was(given_round):
    previous, operations, scores, _ = given_round
    result = apply(previous, operations, operations, scores, capacity=100)
    assert held(result) == sorted(previous, key=lambda item: item.order) and not result.new_texts
    assert [event.kind for event in result.events] == ["rejected"] * len(operations)


@settings(deadline=None, max_examples=40)
@given(rounds(), st.data())
def test_refusing_some_applies_no_operation_that_was_not_applied_without(given_round, data):
    previous, operations, scores, options = given_round
    refused = [item for item in operations if data.draw(st.booleans())]
    result = apply(previous, operations, refused, scores, **options)
    shown = apply(previous, operations, (), scores, **options)

    def applied(found):
        return {event.operation_id for event in found.events if event.kind not in ("rejected", "evict")}

    assert applied(result) <= applied(shown) - {item.operation_id for item in refused}
    by_id = {item.operation_id: item for item in operations}
    assert replay(Snapshot.of(ROUND - 1, previous), result.events, by_id) == result.changes
    reasons = {event.operation_id: event.reason for event in result.events}
    assert all(reasons[item.operation_id] == WHY for item in refused)


@settings(deadline=None, max_examples=20)
@given(rounds())
def test_refusing_nothing_changes_nothing(given_round):
    previous, operations, scores, options = given_round
    before = Snapshot.of(ROUND - 1, previous)
    plain = consolidate(before, operations, scores, Rules(BankConfig(**options), 50), round=ROUND)
    result = apply(previous, operations, (), scores, **options)
    assert (result.changes, result.events, result.new_texts) == (plain.changes, plain.events, plain.new_texts)
