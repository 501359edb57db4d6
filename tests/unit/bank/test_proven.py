"""A proven entry is not replaced by a text that nobody tried; a text that says less is merged into the other.

Whatever happens is replayed from its events alone.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.consolidate import Rules, consolidate
from crl.bank.contained import Contained
from crl.bank.replay import replay
from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig, ProvenConfig
from crl.records import EntryScore
from tests.unit.bank.test_consolidate import ROUND, entry, held, ids, operation

PROVEN = ProvenConfig(uses=4, outcome=0.5)


def score(name: str, text: str, uses: int, mean: float) -> EntryScore:
    return EntryScore(
        entry_id=name, content_digest=text_digest(text), uses=uses, mean_outcome=mean, last_used_round=ROUND - 1
    )


def run(previous, operations, scores=(), tried=None, refused=None, **config):
    """Consolidate, and hold the result against what replay makes of its events."""
    before = Snapshot.of(ROUND - 1, previous)
    said = {each.content_digest: text for each, text in previous_texts(previous)}
    rules = Rules(
        BankConfig(**{"proven": PROVEN, **config}),
        200,
        tried={("room", text_digest(text)): result for text, result in (tried or {}).items()},
        texts=lambda rows: {digest: said[digest] for digest in rows["content_digest"].to_pylist()},
    )
    result = consolidate(before, operations, scores, rules, round=ROUND, refused=refused)
    made = replay(before, result.events, {each.operation_id: each for each in operations})
    assert made == result.changes
    return result


_texts: dict[str, str] = {}


def known(name: str, text: str, order: int = 0, **changes):
    _texts[text_digest(text)] = text
    return entry(name, text, order, **changes)


def previous_texts(previous):
    return [(each, _texts[each.content_digest]) for each in previous]


def reasons(result):
    return [(event.kind, event.entry_id, event.reason, event.repeats) for event in result.events]


def test_an_update_of_a_proven_entry_waits_beside_it():
    wanted = operation("update", "a", "new words")
    result = run([known("a", "old words")], [wanted], [score("a", "old words", 4, 0.5)])
    old, new = held(result)
    assert (old.entry_id, old.content_digest, old.version) == ("a", text_digest("old words"), 1)
    assert (new.entry_id, new.parents, new.version) == (f"x-{wanted.operation_id}", ["a"], 1)
    assert new.generation_id == wanted.generation_id
    assert new.episode_ids == ["e-a", *wanted.episode_ids]
    (event,) = result.events
    assert (event.kind, event.entry_id, event.parents, event.reason) == ("add", new.entry_id, ["a"], "waits_beside")


@pytest.mark.parametrize(
    "scores",
    [
        [],
        [score("a", "old words", 3, 1.0)],
        [score("a", "old words", 9, 0.4)],
        [score("a", "words before", 9, 1.0)],
    ],
)
def test_what_is_not_proven_is_updated_in_place(scores):
    result = run([known("a", "old words")], [operation("update", "a", "new words")], scores)
    (only,) = held(result)
    assert (only.entry_id, only.version, only.content_digest) == ("a", 2, text_digest("new words"))


def test_without_the_setting_a_proven_entry_is_replaced():
    wanted = operation("update", "a", "new words")
    result = run([known("a", "old words")], [wanted], [score("a", "old words", 9, 1.0)], proven=None)
    assert ids(result) == ["a"] and held(result)[0].version == 2


def test_one_version_waits_at_a_time():
    proven = [score("a", "old", 9, 1.0)]
    first, second = operation("update", "a", "second words"), operation("update", "a", "third words")
    result = run([known("a", "old")], [first, second], proven)
    assert ids(result) == ["a", f"x-{first.operation_id}"]
    assert reasons(result)[1] == ("rejected", "a", "version_waits", None)
    waiting = [known("a", "old"), known("w", "second words", 1, parents=["a"])]
    assert ids(run(waiting, [operation("update", "a", "third words")], proven)) == ["a", "w"]
    gone = run(waiting, [operation("drop", "w"), operation("update", "a", "third words")], proven)
    assert len(ids(gone)) == 2 and "w" not in ids(gone)
    revised = run(waiting, [operation("update", "w", "third words")], proven)
    assert ids(revised) == ["a", "w"], "the version itself is not proven"


@pytest.mark.parametrize(
    ("uses", "mean", "left", "event"),
    [
        (3, 1.0, ["a", "w"], []),
        (4, 0.75, ["w"], [("evict", "a", "newer_version", "w")]),
        (4, 0.5, ["w"], [("evict", "a", "newer_version", "w")]),
        (4, 0.25, ["a"], [("evict", "w", "older_version", "a")]),
    ],
)
def test_a_version_that_won_as_often_replaces_the_entry(uses, mean, left, event):
    previous = [known("a", "old"), known("w", "new", 1, parents=["a"])]
    result = run(previous, [], [score("a", "old", 40, 0.5), score("w", "new", uses, mean)])
    assert ids(result) == left
    assert reasons(result) == event


def test_a_version_whose_entry_left_waits_for_nobody():
    previous = [known("w", "new", 1, parents=["a"])]
    assert ids(run(previous, [], [score("w", "new", 9, -1.0)])) == ["w"]


@pytest.mark.parametrize(
    ("tried", "replaced"),
    [
        ({"new": (8, 5), "old": (8, 5)}, True),
        ({"new": (8, 6), "old": (8, 5)}, True),
        ({"new": (8, 4), "old": (8, 5)}, False),
        ({"new": (8, 4), "old": (2, 1)}, True),  # the older one was given up after two layouts
        ({"new": (8, 4), "old": (2, 2)}, False),
        ({"new": (6, 3), "old": (5, 5)}, False),  # an environment broke a game of the older one
        ({"new": (6, 3), "old": (0, 0)}, False),
        ({"new": (2, 2), "old": (8, 4)}, False),
        ({"new": (8, 8)}, False),
        ({"old": (8, 0)}, False),
    ],
)
def test_a_trial_of_both_says_at_once_which_is_better(tried, replaced):
    result = run([known("a", "old")], [operation("update", "a", "new")], [score("a", "old", 9, 1.0)], tried)
    first = held(result)[0]
    assert (first.entry_id, first.version) == ("a", 2 if replaced else 1)
    assert len(held(result)) == (1 if replaced else 2)
    assert result.events[0].kind == ("update" if replaced else "add")


def test_no_merge_or_drop_takes_a_proven_entry():
    previous = [known("a", "old"), known("b", "other", 1)]
    asked = [operation("merge", "m", "both", parents=["a", "b"]), operation("drop", "a"), operation("drop", "b")]
    result = run(previous, asked, [score("a", "old", 9, 1.0)])
    assert ids(result) == ["a"]
    assert [reason for _, _, reason, _ in reasons(result)] == ["proven", "proven", None]


LESS, MORE = "Offer it the coin.", "Offer it the coin, then the bell. It refuses the seed."


@pytest.mark.parametrize("eviction", ["fifo", "least_useful"])
def test_a_full_bank_loses_what_is_proven_last(eviction):
    entries = [known("a", "old", 0), known("b", "never used", 1), known("c", "lost", 2)]
    scores = [score("a", "old", 9, 1.0), score("c", "lost", 9, -1.0)]
    new = [operation("add", f"n{number}", f"new {number}") for number in range(2)]
    result = run(entries, new, scores, capacity=2, eviction=eviction)
    assert [each.entry_id for each in held(result)] == ["a", "n1"]
    plain = run(entries, new, scores, capacity=2, eviction=eviction, proven=None)
    assert [each.entry_id for each in held(plain)] == ["n0", "n1"]
    proven = [*scores[:1], score("b", "never used", 4, 0.5), score("c", "lost", 4, 0.5)]
    assert [each.entry_id for each in held(run(entries, new, proven, capacity=2, eviction="fifo"))] == ["b", "c"]


def test_a_text_that_says_less_is_refused():
    result = run([known("a", MORE)], [operation("add", "n", LESS)], merge_contained=True)
    assert ids(result) == ["a"]
    assert reasons(result) == [("rejected", "n", "contained", "a")]
    assert ids(run([known("a", MORE)], [operation("add", "n", LESS)])) == ["a", "n"], "only where it is asked for"
    asked = [operation("add", "n", LESS), operation("add", "m", "Another one.")]
    result = run([known("a", MORE)], asked, refused={asked[1].operation_id: "no"}, merge_contained=True)
    assert reasons(result) == [("rejected", "n", "contained", "a"), ("rejected", "m", "no", None)], "a person refused"
    other = run([known("a", MORE)], [operation("add", "n", LESS, "lake")], merge_contained=True)
    assert ids(other) == ["a", "n"], "another family says nothing here"


@pytest.mark.parametrize("kind", ["add", "update", "merge"])
def test_what_says_less_than_a_new_text_is_merged_into_it(kind):
    previous = [known("a", LESS), known("b", "Something else.", 1)]
    parents = ["b"] if kind == "merge" else []
    name = {"add": "n", "update": "b", "merge": "m"}[kind]
    result = run(previous, [operation(kind, name, MORE, parents=parents)], merge_contained=True)
    assert ids(result) == (["b", "n"] if kind == "add" else [name])
    assert reasons(result)[-1] == ("evict", "a", "contained", name)


def test_a_proven_entry_that_says_less_stays_and_the_new_text_waits_beside_it():
    proven = [score("a", LESS, 9, 1.0)]
    result = run([known("a", LESS)], [operation("add", "n", MORE)], proven, merge_contained=True)
    assert ids(result) == ["a", "n"]
    assert held(result)[1].parents == ["a"] and reasons(result)[0][2] == "waits_beside"


def test_where_texts_stand_for_outputs_an_equal_one_is_another_entry_and_one_that_says_less_is_refused():
    entries = [known("a", MORE)]
    result = run(entries, [operation("add", "n", MORE)], merge_contained=True, duplicates="keep")
    assert [each.entry_id for each in held(result)] == ["a", "n"]
    result = run(entries, [operation("add", "n", LESS)], merge_contained=True, duplicates="keep")
    assert reasons(result) == [("rejected", "n", "contained", "a")]
    result = run([known("b", LESS)], [operation("add", "n", MORE)], merge_contained=True, duplicates="keep")
    assert [each.entry_id for each in held(result)] == ["n"]


def test_two_texts_of_one_round_are_held_against_each_other():
    asked = [operation("add", "n", LESS), operation("add", "m", MORE), operation("add", "k", LESS.upper())]
    result = run([], asked, merge_contained=True)
    assert ids(result) == ["m"]
    assert [reason for _, _, reason, _ in reasons(result)] == [None, None, "contained", "contained"]


@pytest.mark.parametrize(
    ("text", "other", "less"),
    [
        (LESS, MORE, True),
        ("it refuses the SEED", MORE, True),
        ("Offer it the coin, then the bell! It refuses the seed", MORE, True),
        (MORE, LESS, False),
        ("Offer it the bell.", MORE, False),
        ("Offer it the coin.", "Never offer it the coin.", False),
        ("Then the bell.", MORE, False),
        ("Take A", "take A then B", True),
        ("take B", "take A then B", False),
        ("Offer it the coin. Run.", MORE, False),
        ("...", MORE, False),
        ("Offer it the co", MORE, False),
    ],
)
def test_what_says_less(text, other, less):
    assert (Contained({"t": text}).that_say_less(other) == {"t"}) is less
    assert (Contained({"o": other}).that_say_more(text) == {"o"}) is less


_TEXT = st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(", ".join), max_size=3)


@given(texts=st.lists(_TEXT.map(". ".join), max_size=6))
@settings(max_examples=60, deadline=None)
def test_more_and_less_are_two_sides_of_one_thing(texts):
    index = Contained({str(number): text for number, text in enumerate(texts)})
    for number, text in enumerate(texts):
        if text:
            less = {other for other, each in enumerate(texts) if each and str(number) in index.that_say_more(each)}
            assert {int(name) for name in index.that_say_less(text)} - {
                other for other, each in enumerate(texts) if not each
            } == less


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_is_asked_a_proven_entry_leaves_only_for_a_version_that_won_as_often(data):
    words = st.sampled_from(["a", "b", "a, b", "a, b. c", "c", "c, d"])
    names = ["p", "q", "w"]
    previous = [
        known(name, f"{name}. {data.draw(words)}", order, parents=["p"] if name == "w" else [])
        for order, name in enumerate(names)
    ]
    scores = [
        score(each.entry_id, _texts[each.content_digest], data.draw(st.integers(1, 8)),
              data.draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0])))
        for each in previous
    ]  # fmt: skip
    operations = [
        operation(kind, f"n{number}" if kind in ("add", "merge") else data.draw(st.sampled_from(names)),
                  None if kind == "drop" else data.draw(words),
                  parents=["q", "w"] if kind == "merge" else [])
        for number, kind in enumerate(data.draw(st.lists(st.sampled_from(["add", "update", "merge", "drop"]))))
    ]  # fmt: skip
    result = run(
        previous, operations, scores, merge_contained=data.draw(st.booleans()),
        duplicates=data.draw(st.sampled_from(["reject", "keep"])), capacity=data.draw(st.integers(3, 9)),
    )  # fmt: skip
    for each, known_score in zip(previous, scores, strict=True):
        if known_score.uses < PROVEN.uses or known_score.mean_outcome < PROVEN.outcome:
            continue
        now = next((after for after in held(result) if after.entry_id == each.entry_id), None)
        if now is not None:
            assert now.content_digest == each.content_digest
            continue
        (left,) = [event for event in result.events if event.kind == "evict" and event.entry_id == each.entry_id]
        assert left.reason in ("newer_version", "older_version")
