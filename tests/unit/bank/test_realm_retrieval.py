"""What benchmarks/realm_retrieval.py measures: inside the family the realm is right, over the bank it need not be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.realm_retrieval import NOTES, QUERIES, TRUE, Shares, notes_of, queries_of, realms_of, shares
from crl.config import RetrievalConfig
from crl.envs.levels import is_held_out
from crl.policies.embedders import LexicalEmbedder

REALMS = 8


def measured(*, named: bool, **settings: Any) -> Shares:
    realms = realms_of(REALMS, world=1)
    config = RetrievalConfig(embedder="lexical", rank_score="fraction", **settings)
    return shares(LexicalEmbedder(), notes_of(realms, named=named), queries_of(realms), config)


def test_the_bank_and_the_queries_are_as_the_page_says() -> None:
    realms = realms_of(REALMS, world=1)
    for named in (False, True):
        notes = notes_of(realms, named=named)
        assert Counter(each.realm for each in notes) == dict.fromkeys(range(REALMS), NOTES)
        assert Counter(each.realm for each in notes if each.true) == dict.fromkeys(range(REALMS), TRUE)
        assert all(each.text.startswith(f"in r{each.realm} ") is named for each in notes)
        for config in realms:  # a text is the rule of its realm or it is not
            texts = {true: {each.text for each in notes if each.realm == config.realm and each.true is true}
                     for true in (False, True)}  # fmt: skip
            assert len(texts[True]) == 1 and not texts[True] & texts[False]
    asked = queries_of(realms)
    assert len({each.text for each in asked}) == QUERIES
    assert Counter(each.realm for each in asked) == dict.fromkeys(range(REALMS), QUERIES // REALMS)
    for each in asked:
        goal, layout = each.text.split("\n")
        assert goal == f"r{each.realm}" and is_held_out(layout)


@pytest.mark.parametrize("diversify", [False, True], ids=["nearest", "eq6"])
@pytest.mark.parametrize("named", [False, True], ids=["plain", "named"])
def test_inside_the_family_every_note_is_of_the_right_realm(named: bool, diversify: bool) -> None:
    found = measured(named=named, scope="family", diversify=diversify)
    assert found.right_realm == 1.0
    assert TRUE / NOTES < found.true_note < 1.0, "words in common with the grid tell more than chance, not all"


def test_over_the_whole_bank_only_a_named_realm_is_found() -> None:
    plain, named = (measured(named=each, scope="bank", diversify=False) for each in (False, True))
    assert plain.right_realm < 0.5 < named.right_realm < 1.0
    assert plain.true_note <= plain.right_realm and named.true_note <= named.right_realm
