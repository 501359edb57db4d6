"""`bank.duplicates: near`: a text that resembles an entry of the bank is rejected, and the event names that entry.

What consolidation makes of resemblances in generated rounds is in `test_consolidate.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank import duplicates as resemblance
from crl.bank.consolidate import Rules, consolidate
from crl.bank.duplicates import SimilarPairs, resemblances
from crl.bank.index import similarities
from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig
from crl.records import Resemblance
from tests.unit.bank.test_consolidate import ROUND, entry, operation


def pair(first: str, second: str, similarity: float = 0.97) -> Resemblance:
    return Resemblance(content_digest=text_digest(first), other_digest=text_digest(second), similarity=similarity)


def told(previous, asked, pairs, *, duplicates="near", refused=(), **rules):
    """(kind, reason, repeated entry) of each operation."""
    result = consolidate(
        Snapshot.of(ROUND - 1, previous), asked, [], Rules(BankConfig(duplicates=duplicates), 50, **rules),
        round=ROUND, resemblances=pairs, refused=dict.fromkeys((each.operation_id for each in refused), "no"),
    )  # fmt: skip
    return [(event.kind, event.reason, event.repeats) for event in result.events]


ADDED = ("add", None, None)


def near(name: str | None) -> tuple[str, str, str | None]:
    return ("rejected", "near_duplicate", name)


def test_a_text_that_resembles_an_entry_is_refused_and_names_it():
    previous = [entry("a", "A", 0), entry("b", "B", 1)]
    asked = [operation("add", "n", "almost A"), operation("add", "m", "new")]
    assert told(previous, asked, [pair("almost A", "A")]) == [near("a"), ADDED]
    # Either way round, and whatever else resembles what.
    assert told(previous, asked, [pair("A", "almost A"), pair("B", "A")]) == [near("a"), ADDED]
    assert told(previous, asked, [pair("A", "almost A")], duplicates="reject") == [ADDED, ADDED]
    assert told(previous, asked, [pair("A", "almost A")], duplicates="keep") == [ADDED, ADDED]


def test_of_several_the_one_that_resembles_it_most_is_named_and_of_equals_the_oldest():
    previous = [entry("a", "A", 5), entry("b", "B", 1), entry("c", "C", 3)]
    asked = [operation("add", "n", "new")]
    pairs = [pair("new", "A", 0.96), pair("new", "B", 0.95), pair("new", "C", 0.96)]
    assert told(previous, asked, pairs) == [near("c")]
    assert told(previous, asked, [*pairs[1:], pair("new", "A", 0.98)]) == [near("a")]


def test_the_same_text_is_a_duplicate_whatever_resembles_it():
    previous = [entry("a", "A", 0), entry("b", "B", 1)]
    assert told(previous, [operation("add", "n", "B")], [pair("B", "A")]) == [("rejected", "duplicate", "b")]


def test_texts_of_the_round_count_as_soon_as_they_are_in_the_bank_and_no_longer():
    asked = [operation("add", "n", "one"), operation("add", "m", "one!"), operation("drop", "n"),
             operation("add", "k", "one!")]  # fmt: skip
    assert told([], asked, [pair("one!", "one")]) == [ADDED, near("n"), ("drop", None, None), ADDED]


def test_what_is_replaced_does_not_count():
    previous = [entry("a", "A", 0), entry("b", "B", 1), entry("c", "C", 2)]
    pairs = [pair("A better", "A"), pair("A and B", "A"), pair("A and B", "B"), pair("all", "C")]
    asked = [
        operation("update", "a", "A better"),
        operation("merge", "m", "A and B", parents=["a", "b"]),
        operation("merge", "n", "all", parents=["m"]),
    ]
    assert told(previous, asked, pairs) == [("update", None, None), ("merge", None, None), near("c")]
    assert told(previous, [operation("update", "b", "A better")], pairs) == [near("a")]


def test_another_family_counts_only_where_retrieval_searches_the_whole_bank():
    previous = [entry("z", "Z", 0, "lake")]
    asked, pairs = [operation("add", "n", "almost Z")], [pair("almost Z", "Z")]
    assert told(previous, asked, pairs) == [ADDED]
    assert told(previous, asked, pairs, resemblance_anywhere=True) == [near("z")]


def test_the_very_text_of_another_family_is_refused_where_one_that_resembles_it_would_be():
    previous = [entry("z", "Z", 0, "lake")]
    asked = [operation("add", "n", "Z")]
    assert told(previous, asked, []) == [ADDED]
    assert told(previous, asked, [], duplicates="reject", resemblance_anywhere=True) == [ADDED]
    assert told(previous, asked, [], resemblance_anywhere=True) == [near("z")]
    # It names that entry, whatever else resembles it.
    previous.append(entry("a", "A", 1))
    assert told(previous, asked, [pair("A", "Z", 0.99)], resemblance_anywhere=True) == [near("z")]
    replaced = operation("update", "z", "Z!", "lake")
    assert told(previous, [replaced, *asked], [], resemblance_anywhere=True) == [("update", None, None), ADDED]


def test_the_near_twin_of_a_refused_text_does_not_slip_in_for_it():
    first, twin = operation("add", "n", "one"), operation("add", "m", "one!")
    assert told([], [first, twin], [pair("one!", "one")], refused=[first]) == [("rejected", "no", None), near(None)]
    old = [entry("a", "uno")]
    pairs = [pair("one!", "one", 0.99), pair("one!", "uno", 0.95)]
    assert told(old, [first, twin], pairs, refused=[first])[1] == near("a")


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.integers(1, 40), st.sampled_from([0.5, 0.9, 0.99]))
def test_pairs_are_those_whose_cosine_reaches_the_threshold(seed, few, many, threshold):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(3, 16))
    vectors_ND = (centers[rng.integers(0, 3, few + many)] + rng.normal(size=(few + many, 16)) * 0.4).astype(np.float32)
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    names = [f"{number:03d}" for number in range(few + many)]
    # Some of the others are the same texts.
    others = names[few // 2 :]
    found = resemblances(names[:few], vectors_ND[:few], others, vectors_ND[few // 2 :], threshold)
    expected = {
        (first, second): cosine
        for first, vector in zip(names[:few], vectors_ND[:few], strict=True)
        for second, cosine in zip(others, similarities(vectors_ND[few // 2 :], vector), strict=True)
        if cosine >= threshold and first != second
    }
    assert {(row.content_digest, row.other_digest): row.similarity for row in found} == expected
    assert [(row.content_digest, row.other_digest) for row in found] == sorted(expected)


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    vectors_ND = rng.normal(size=(50, 8)).astype(np.float32)
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    names = [str(number) for number in range(50)]
    whole = resemblances(names[:5], vectors_ND[:5], names, vectors_ND, 0.4)
    monkeypatch.setattr(resemblance, "_COLUMNS", 7)
    assert whole and resemblances(names[:5], vectors_ND[:5], names, vectors_ND, 0.4) == whole


def test_a_pair_is_known_from_both_ends():
    alike = SimilarPairs([pair("a", "b", 0.96)])
    assert alike.of(text_digest("b")) == {text_digest("a"): 0.96} and alike.of(text_digest("c")) == {}
