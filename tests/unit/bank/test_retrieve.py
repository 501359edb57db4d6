"""Retrieval beside eq. 6 itself (tests/paper/test_equation_6.py): counters, scopes, sharing, ties, read-only use."""

import dataclasses

import numpy as np
import pytest

from crl.bank.retrieve import BankRetriever, EarlierBank, shared_with
from crl.bank.snapshot import Snapshot
from crl.config import RetrievalConfig
from crl.records import BankEntry, RetrievalCount
from crl.run.cache import Shelf
from tests.unit.bank.vectors import normed

EAST, NORTH = np.array([1.0, 0.0], dtype=np.float32), np.array([0.0, 1.0], dtype=np.float32)


def entry(name: str, order: int, family: str = "room") -> BankEntry:
    return BankEntry(
        entry_id=name,
        family=family,
        content_digest=f"digest-{name}",
        segment="",
        embedding_file="",
        version=1,
        created_round=1,
        updated_round=1,
        order=order,
        operation_id="o",
        distillation_id="d",
        generation_id=f"g-{name}",
        episode_ids=[],
        parents=[],
        embedder_cut=False,
    )


def chosen_of(rows):
    return next((row for row in rows if row.chosen), None)


def retriever(entries, vectors, counts=(), **options):
    bank, config = Snapshot.of(2, entries), RetrievalConfig(**options)
    given = {each.entry_id: row for row, each in enumerate(entries)}
    vectors_ND = np.asarray(vectors, dtype=np.float32)
    if len(vectors_ND) == len(entries):
        vectors_ND = vectors_ND[[given[each.entry_id] for each in bank.entries()]]
    return BankRetriever(bank, vectors_ND, counts, config, round=3, bank_round=2)


def test_counters_advance_in_the_order_of_calls():
    bank = retriever([entry("a", 0), entry("b", 1)], [[1, 0], [0.9, 0.1]])
    chosen = [chosen_of(bank.retrieve(f"e{n}", "room", EAST)).entry_id for n in range(4)]
    # a 0, b −1; then a −0.28 − 1, b −1; then b −1 − 0.28 − 1; then a −0.44 − 1.
    assert chosen == ["a", "b", "a", "a"]
    assert {row.entry_id: row.count for row in bank.counts()} == {"a": 3, "b": 1}
    assert {row.last_round for row in bank.counts()} == {3}


def test_what_is_masked_for_a_family_is_ranked_as_if_it_were_not_there():
    rng = np.random.default_rng(5)
    entries = [entry(f"m{place}", place, family=("room", "hall")[place % 2]) for place in range(12)]
    vectors = normed(rng.normal(size=(12, 4)))
    out = {"m0", "m3", "m4", "m9"}
    options = {"scope": "bank", "candidates": 3, "top_k": 2, "rank_score": "fraction"}
    texts = {f"digest-{name}" for name in out}

    def searched(listed, masked):
        kept = [place for place, each in enumerate(entries) if each in listed]
        bank = Snapshot.of(2, listed)
        order = {each.entry_id: vectors[place] for place, each in enumerate(entries)}
        vectors_ND = np.asarray([order[each.entry_id] for each in bank.entries()], dtype=np.float32)
        assert len(kept) == len(vectors_ND)
        return BankRetriever(bank, vectors_ND, (), RetrievalConfig(**options), round=3, bank_round=2, masked=masked)

    queries = np.asarray(normed(rng.normal(size=(8, 4))), dtype=np.float32)
    asked = [(f"e{number}", "room") for number in range(8)]
    found = searched(entries, {"room": texts}).retrieve_many(asked, queries)
    without = searched([each for each in entries if each.entry_id not in out], {}).retrieve_many(asked, queries)
    assert found == without and all(len(rows) == 6 for rows in found)
    # The other family sees everything, in the same search as well.
    mixed = [(name, ("room", "hall")[number % 2]) for number, (name, _) in enumerate(asked)]
    seen = searched(entries, {"room": texts}).retrieve_many(mixed, queries)
    shown = {
        family: {row.entry_id for rows in seen for row in rows if row.family == family} for family in ("room", "hall")
    }
    assert not shown["room"] & out and shown["hall"] & out
    assert searched(entries, {"room": {"digest-m3"}, "hall": set()}).masked_rows() == [("room", "m3", "digest-m3")]


@pytest.mark.parametrize("index", ["exact", "approximate"])
def test_of_equal_cosines_the_oldest_or_the_newest_are_candidates(index):
    """Three directions, twelve entries each: more that are equal than there are candidates."""
    vectors = np.eye(3)[np.arange(36) % 3]
    entries = [entry(f"x{number:02}", number, "room" if number % 2 else "lake") for number in range(36)]
    for scope in ("bank", "family"):
        found = {}
        for ties in ("oldest", "newest"):
            bank = retriever(entries, vectors, candidates=4, ties=ties, index=index, scope=scope, diversify=False)
            found[ties] = [bank.retrieve(f"e{axis}", "room", np.eye(3, dtype=np.float32)[axis]) for axis in range(3)]
            assert [row.entry_id for row in bank.counts()] == sorted(chosen_of(rows).entry_id for rows in found[ties])
        for axis in range(3):
            equal = [each.entry_id for number, each in enumerate(entries)
                     if number % 3 == axis and (scope == "bank" or each.family == "room")]  # fmt: skip
            assert [row.entry_id for row in found["oldest"][axis]] == equal[:4]
            assert [row.entry_id for row in found["newest"][axis]] == equal[:-5:-1]
    masked = BankRetriever(
        Snapshot.of(2, entries), np.asarray(vectors, np.float32), (), RetrievalConfig(ties="newest"), round=3,
        bank_round=2, masked={"room": {"digest-x03", "digest-x33"}},
    )  # fmt: skip
    assert [name for _, name, _ in masked.masked_rows()] == ["x03", "x33"], "in the order of entries"


def test_counts_follow_from_the_rows():
    bank = retriever([entry("a", 0), entry("b", 1), entry("c", 2)], [[1, 0], [0.9, 0.1], [0, 1]])
    before: dict[str, int] = {}
    for number, query in enumerate([EAST, EAST, NORTH, EAST, NORTH]):
        rows = bank.retrieve(f"e{number}", "room", query)
        assert {row.entry_id: row.count for row in rows} == {row.entry_id: before.get(row.entry_id, 0) for row in rows}
        chosen = chosen_of(rows)
        before[chosen.entry_id] = before.get(chosen.entry_id, 0) + 1
    assert {row.entry_id: row.count for row in bank.counts()} == before


def test_many_at_once_are_one_after_another():
    vectors = np.random.default_rng(3).normal(size=(40, 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    entries = [entry(f"x{number:02}", number, "room" if number % 3 else "lake") for number in range(40)]
    episodes = [(f"e{number}", "lake" if number % 2 else "room") for number in range(12)]
    queries = np.repeat(vectors[:3], 4, axis=0).astype(np.float32)
    for advance in (True, False):
        together, apart = retriever(entries, vectors, candidates=5), retriever(entries, vectors, candidates=5)
        rows = together.retrieve_many(episodes, queries, advance=advance)
        assert rows == [
            apart.retrieve(*episode, query, advance=advance) for episode, query in zip(episodes, queries, strict=True)
        ]
        assert together.counts() == apart.counts()
        assert bool(together.counts()) == advance


def test_evaluation_moves_no_counter():
    counts = [RetrievalCount(entry_id="a", count=2, last_round=2)]
    bank = retriever([entry("a", 0), entry("b", 1)], [[1, 0], [0.9, 0.1]], counts)
    first = bank.retrieve("e", "room", EAST, advance=False)
    assert bank.retrieve("e", "room", EAST, advance=False) == first
    assert bank.counts() == counts


def test_counters_of_entries_that_are_gone_are_left_out():
    counts = [RetrievalCount(entry_id=name, count=2, last_round=1) for name in ("gone", "a")]
    assert [row.entry_id for row in retriever([entry("a", 0)], [[1, 0]], counts).counts()] == ["a"]


def test_scope_family_or_bank():
    entries, vectors = [entry("near", 0, "other"), entry("far", 1, "room")], [[1, 0], [0.6, 0.8]]
    assert [row.entry_id for row in retriever(entries, vectors).retrieve("e", "room", EAST)] == ["far"]
    rows = retriever(entries, vectors, scope="bank").retrieve("e", "room", EAST)
    assert [row.entry_id for row in rows] == ["near", "far"]
    assert {row.family for row in rows} == {"room"}
    assert retriever(entries, vectors).retrieve("e", "nowhere", EAST) == []


def test_nothing_above_the_threshold_is_not_chosen_but_recorded():
    rows = retriever([entry("a", 0)], [[0.5, 0.8660254]], threshold=0.6).retrieve("e", "room", EAST)
    assert chosen_of(rows) is None
    assert [row.entry_id for row in rows] == ["a"]


def test_an_entry_below_the_threshold_is_never_chosen_for_its_small_count():
    counts = [RetrievalCount(entry_id="a", count=1000, last_round=3)]
    bank = retriever([entry("a", 0), entry("b", 1)], [[1, 0], [0, 1]], counts, threshold=0.5)
    assert chosen_of(bank.retrieve("e", "room", EAST)).entry_id == "a"


def test_the_recency_window_ends_with_the_present_round():
    def recent(last_round, window):
        counts = [RetrievalCount(entry_id="a", count=1, last_round=last_round)]
        bank = retriever([entry("a", 0)], [[1, 0]], counts, recent_rounds=window)
        return bank.retrieve("e", "room", EAST)[0].recent

    assert [recent(last, 1) for last in (1, 2, 3)] == [False, False, True]
    assert [recent(last, 2) for last in (1, 2, 3)] == [False, True, True]
    assert not recent(3, 0)


def test_equal_cosines_stand_in_entry_order_whatever_the_order_given():
    entries = [entry(f"x{number:02}", number) for number in range(60)]
    vectors = np.tile(EAST, (60, 1))
    shuffled = np.random.default_rng(0).permutation(60)
    for order in (range(60), shuffled):
        rows = retriever([entries[n] for n in order], vectors, candidates=4).retrieve("e", "room", EAST)
        assert [row.entry_id for row in rows] == ["x00", "x01", "x02", "x03"]


def test_a_group_shares_one_retrieval_counted_once():
    bank = retriever([entry("a", 0)], [[1, 0]], per="group")
    rows = bank.retrieve("r3-room-g0-m0", "room", EAST)
    other = shared_with(rows, "r3-room-g0-m1")
    assert [row.episode_id for row in other] == ["r3-room-g0-m1"]
    assert dataclasses.replace(other[0], episode_id=rows[0].episode_id) == rows[0]
    assert [row.count for row in bank.counts()] == [1]


def test_what_left_the_bank_is_never_found_whatever_the_cache_holds(tmp_path):
    vectors = normed(np.random.default_rng(1).normal(size=(600, 16)))
    entries = [entry(f"x{number:03}", number, "lake" if number % 3 else "room") for number in range(600)]
    config = RetrievalConfig(index="approximate", candidates=8)
    left = [number for number in range(600) if number % 7]
    first = Snapshot.of(1, entries)
    base = EarlierBank(lambda: first.table, lambda rows: vectors[[int(x[1:]) for x in rows["entry_id"].to_pylist()]])
    episodes = [(f"e{number}", "lake" if number % 2 else "room") for number in range(0, 600, 7)]

    def rows(snapshot, numbers, cache):
        bank = BankRetriever(snapshot, vectors[numbers], [], config, round=3, bank_round=2, base=base, cache=cache)
        found = bank.retrieve_many(episodes, vectors[::7], advance=False)
        assert bank.kinds == {"lake": "approximate", "room": "approximate"}
        return found

    second = Snapshot.of(2, [entries[number] for number in left])
    expected = rows(second, left, None)
    assert rows(first, list(range(600)), Shelf(tmp_path)) != expected
    assert rows(second, left, Shelf(tmp_path)) == expected
    held = {entries[number].entry_id: entries[number].family for number in left}
    for (_, family), candidates in zip(episodes, expected, strict=True):
        assert len(candidates) == 8 and all(held[row.entry_id] == family for row in candidates)


def test_entries_and_embeddings_must_match():
    with pytest.raises(ValueError, match="1 entries, but 2 embeddings"):
        retriever([entry("a", 0)], [[1, 0], [0, 1]])


def test_an_empty_bank_retrieves_nothing():
    bank = retriever([], np.empty((0, 0)))
    assert bank.retrieve("e", "room", EAST) == [] and bank.counts() == []
    assert bank.retrieve_many([], np.empty((0, 2), np.float32)) == []
