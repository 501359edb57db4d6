"""Consolidation: every rule once, then properties over generated rounds, the plain way to do it beside them."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.changes import Change
from crl.bank.consolidate import Consolidation, Rules, consolidate
from crl.bank.duplicates import SimilarPairs
from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig
from crl.records import BankEntry, EntryScore, Operation, Resemblance
from tests.unit.bank.reference import reference

ROUND = 5


def entry(name: str, text: str, order: int = 0, family: str = "room", **changes) -> BankEntry:
    values = {
        "entry_id": name, "family": family, "content_digest": text_digest(text),
        "segment": f"bank/segments/{name}.parquet", "embedding_file": f"bank/embeddings/{name}.parquet",
        "version": 1, "created_round": 1, "updated_round": 1, "order": order, "operation_id": f"o-{name}",
        "distillation_id": f"d-{name}", "generation_id": f"g-{name}",
        "episode_ids": [f"e-{name}"],
        "parents": [],
        "embedder_cut": False,
    }  # fmt: skip
    return BankEntry(**(values | changes))


_number = iter(range(10**9))


def operation(kind: str, entry_id: str | None = None, text: str | None = None, family: str = "room", **changes):
    number = next(_number)
    values = {
        "operation_id": f"op{number}",
        "distillation_id": f"dist{number}",
        "generation_id": f"gen{number}",
        "round": ROUND,
        "index": 0,
        "kind": kind,
        "family": family,
        "entry_id": entry_id,
        "parents": [],
        "episode_ids": [f"ep{number}"],
        "text": text,
        "embedder_cut": None if text is None else len(text) > 8,
    }
    return Operation(**(values | changes))


def run(previous, operations, scores=(), evict=True, max_characters=50, **config):
    return consolidate(
        Snapshot.of(ROUND - 1, previous), operations, scores, Rules(BankConfig(**config), max_characters),
        round=ROUND, evict=evict,
    )  # fmt: skip


def held(result):
    return result.snapshot.entries()


def ids(result):
    return [entry.entry_id for entry in held(result)]


def test_add():
    added = operation("add", "n", "new text")
    result = run([entry("a", "A", 3)], [added])
    assert ids(result) == ["a", "n"]
    new = held(result)[1]
    assert new == BankEntry(
        entry_id="n",
        family="room",
        content_digest=text_digest("new text"),
        segment="",
        embedding_file="",
        version=1,
        created_round=ROUND,
        updated_round=ROUND,
        order=4,
        operation_id=added.operation_id,
        distillation_id=added.distillation_id,
        generation_id=added.generation_id,
        episode_ids=added.episode_ids,
        parents=[],
        embedder_cut=False,
    )
    assert result.new_texts == {text_digest("new text"): "new text"}
    event = result.events[0]
    assert (event.event_id, event.kind, event.entry_id, event.family) == ("r5-e0", "add", "n", "room")
    assert (event.before_digest, event.after_digest) == (None, text_digest("new text"))


def test_update_keeps_identity_and_joins_lineage():
    first, second = operation("update", "a", "A2"), operation("update", "a", "A3")
    result = run([entry("a", "A", 3)], [first, second])
    (new,) = held(result)
    assert (new.entry_id, new.order, new.created_round, new.updated_round, new.version) == ("a", 3, 1, ROUND, 3)
    assert new.episode_ids == ["e-a", *first.episode_ids, *second.episode_ids]
    assert (new.generation_id, new.content_digest) == (second.generation_id, text_digest("A3"))
    assert [(event.before_digest, event.after_digest) for event in result.events] == [
        (text_digest("A"), text_digest("A2")),
        (text_digest("A2"), text_digest("A3")),
    ]
    assert list(result.new_texts.values()) == ["A3"]


def test_merge_replaces_its_parents_and_can_be_merged_again():
    previous = [entry("a", "A", 0), entry("b", "B", 1), entry("c", "C", 2)]
    first = operation("merge", "m1", "AB", parents=["a", "b"], episode_ids=[])
    second = operation("merge", "m2", "ABC", parents=["m1", "c"], episode_ids=[])
    result = run(previous, [first, second])
    (new,) = held(result)
    assert (new.entry_id, new.order, new.parents) == ("m2", 4, ["m1", "c"])
    assert new.generation_id == second.generation_id
    assert new.episode_ids == ["e-a", "e-b", "e-c"]
    assert [(event.kind, event.entry_id, event.parents) for event in result.events] == [
        ("merge", "m1", ["a", "b"]),
        ("merge", "m2", ["m1", "c"]),
    ]


def test_a_merge_may_keep_the_text_of_a_parent_and_then_keeps_its_file():
    result = run([entry("a", "A", 0), entry("b", "B", 1)], [operation("merge", "m", "A", parents=["a", "b"])])
    assert ids(result) == ["m"]
    assert held(result)[0].segment == "bank/segments/a.parquet"
    assert result.new_texts == {}


def test_keep_drop_and_return():
    operations = [operation("keep", "a", "A"), operation("drop", "b"), operation("return")]
    result = run([entry("a", "A", 0), entry("b", "B", 1)], operations)
    assert ids(result) == ["a"]
    assert [event.kind for event in result.events] == ["keep", "drop", "return"]


PREVIOUS = [entry("a", "A", 0), entry("b", "B", 1), entry("z", "Z", 2, "lake")]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (operation("add", "n", "A"), "duplicate"),
        (operation("add", "a", "new"), "entry_exists"),
        (operation("add", "n", "  "), "empty_text"),
        (operation("add", "n", None), "empty_text"),
        (operation("add", "n", "x" * 51), "text_too_long"),
        (operation("add", "n", "\ud800"), "bad_text"),
        (operation("update", "gone", "new"), "unknown_entry"),
        (operation("update", None, "new"), "unknown_entry"),
        (operation("update", "z", "new"), "other_family"),
        (operation("update", "a", "A"), "unchanged"),
        (operation("update", "a", "B"), "duplicate"),
        (operation("update", "a", ""), "empty_text"),
        (operation("merge", "m", "new", parents=["a", "gone"]), "unknown_entry"),
        (operation("merge", "m", "new", parents=["a", "z"]), "other_family"),
        (operation("merge", "m", "new", parents=["a", "a"]), "bad_parents"),
        (operation("merge", "m", "new"), "bad_parents"),
        (operation("merge", "b", "new", parents=["a", "b"]), "entry_exists"),
        (operation("drop", "gone"), "unknown_entry"),
        (operation("drop", "z"), "other_family"),
        (operation("keep", "gone"), "unknown_entry"),
        (operation("explode", "a", "A"), "unknown_kind"),
    ],
)
def test_what_cannot_be_applied_is_rejected_and_changes_nothing(asked, reason):
    result = run(PREVIOUS, [asked])
    assert held(result) == PREVIOUS and result.new_texts == {}
    (event,) = result.events
    assert (event.kind, event.reason, event.operation_id) == ("rejected", reason, asked.operation_id)


def test_a_merge_with_the_text_of_a_third_entry_is_a_duplicate():
    previous = [entry("a", "A", 0), entry("b", "B", 1), entry("c", "C", 2)]
    result = run(previous, [operation("merge", "m", "C", parents=["a", "b"])])
    assert ids(result) == ["a", "b", "c"] and result.events[0].reason == "duplicate"
    assert result.events[0].repeats == "c"


def test_a_rejected_duplicate_names_the_entry_that_holds_the_text():
    previous = [entry("a", "A", 0), entry("b", "B", 1), entry("z", "A", 2, "lake")]
    asked = [
        operation("add", "n1", "new"), operation("add", "n2", "new"), operation("add", "n3", "B"),
        operation("update", "a", "B"), operation("update", "b", "B"), operation("add", "n4", "A", "lake"),
        operation("add", "n5", ""), operation("keep", "a", "A"), operation("merge", "m", "new", parents=["n1", "b"]),
        operation("add", "n6", "new"),
    ]  # fmt: skip
    events = run(previous, asked).events
    assert [(event.kind, event.reason, event.repeats) for event in events] == [
        ("add", None, None), ("rejected", "duplicate", "n1"), ("rejected", "duplicate", "b"),
        ("rejected", "duplicate", "b"), ("rejected", "unchanged", "b"), ("rejected", "duplicate", "z"),
        ("rejected", "empty_text", None), ("keep", None, None), ("merge", None, None),
        ("rejected", "duplicate", "m"),
    ]  # fmt: skip


def test_of_several_entries_with_one_text_the_oldest_is_repeated():
    # An import may bring twins into a bank that takes none by itself.
    previous = [entry("young", "A", 7), entry("old", "A", 3), entry("b", "B", 1)]
    assert run(previous, [operation("add", "n", "A")]).events[0].repeats == "old"
    # Rewritten in this round, an entry keeps its age.
    asked = [operation("drop", "old"), operation("update", "b", "A", family="room"), operation("add", "n", "A")]
    assert [event.repeats for event in run(previous, asked).events] == [None, "young", "young"]


def test_the_same_text_in_two_families_is_two_entries_with_one_file():
    result = run([entry("a", "A", 0)], [operation("add", "n", "A", "lake")])
    assert ids(result) == ["a", "n"]
    assert held(result)[1].segment == "bank/segments/a.parquet" and result.new_texts == {}


def test_an_entry_dropped_in_this_round_can_be_updated_no_more():
    result = run([entry("a", "A", 0)], [operation("drop", "a"), operation("update", "a", "new")])
    assert held(result) == [] and result.events[1].reason == "unknown_entry"


def test_fifo_evicts_the_smallest_order_of_the_full_family_only():
    previous = [entry("old", "1", 0), entry("mid", "2", 1), entry("z", "Z", 2, "lake")]
    result = run(previous, [operation("add", "n", "new")], capacity=2)
    assert ids(result) == ["mid", "z", "n"]
    evicted = result.events[-1]
    assert (evicted.kind, evicted.entry_id, evicted.reason) == ("evict", "old", "capacity_fifo")
    assert (evicted.before_digest, evicted.after_digest, evicted.operation_id) == (text_digest("1"), None, None)


def score(name: str, uses: int, mean: float, text: str) -> EntryScore:
    digest = text_digest(text)
    return EntryScore(entry_id=name, content_digest=digest, uses=uses, mean_outcome=mean, last_used_round=4)


def test_least_useful_weighs_the_mean_by_its_uses():
    previous = [entry("once_bad", "1", 0), entry("often_bad", "2", 1), entry("unused", "3", 2), entry("good", "4", 3)]
    # −1/2, −0.8·9/10 = −0.72, 0, +1/2
    scores = [score("once_bad", 1, -1, "1"), score("often_bad", 9, -0.8, "2"), score("good", 1, 1, "4")]
    for capacity, left in ((3, {"once_bad", "unused", "good"}), (2, {"unused", "good"}), (1, {"good"})):
        assert set(ids(run(previous, [], scores, capacity=capacity, eviction="least_useful"))) == left


def test_least_useful_spares_what_was_written_in_this_round_and_takes_the_oldest_of_equals():
    previous = [entry("bad", "1", 0), entry("worse", "2", 1), entry("good", "3", 2)]
    scores = [score("bad", 4, -1, "1"), score("worse", 8, -1, "2"), score("good", 9, 1, "3")]
    operations = [operation("update", "worse", "2 better"), operation("add", "n1", "x"), operation("add", "n2", "y")]
    assert ids(run(previous, operations, scores, capacity=3, eviction="least_useful")) == ["worse", "n1", "n2"]
    assert ids(run(previous[2:], operations[1:], (), capacity=1, eviction="least_useful")) == ["n2"]


@pytest.mark.parametrize("beside", [False, True])
def test_uses_of_earlier_words_are_none_of_the_text(beside):
    """A note that was mended went first for what it had said before."""
    previous = [entry("mended", "whole rule", 0), entry("bad", "1", 1)]
    scores = [score("mended", 9, -1, "half of it"), score("bad", 1, -1, "1")]
    # A keep brings an entry beside the columns.
    operations = [operation("keep", "mended")] if beside else []
    assert ids(run(previous, operations, scores, capacity=1, eviction="least_useful")) == ["mended"]
    refined = [score("mended", 9, 1, "whole rule, in other words"), score("bad", 1, 1, "1")]
    assert ids(run(previous, operations, refined, capacity=1, eviction="least_useful")) == ["mended"], (
        "a good note whose new words nobody has tried yet went before all that had one win"
    )
    now = [score("mended", 9, -1, "whole rule"), scores[1]]
    assert ids(run(previous, operations, now, capacity=1, eviction="least_useful")) == ["bad"]


def test_a_preview_evicts_nothing():
    previous = [entry("a", "A", 0), entry("b", "B", 1)]
    result = run(previous, [operation("add", "n", "new")], evict=False, capacity=1)
    assert ids(result) == ["a", "b", "n"]


def test_a_snapshot_whose_texts_were_never_placed_is_refused():
    unplaced = held(run([], [operation("add", "n", "new")]))
    with pytest.raises(ValueError, match="entry n has no segment"):
        run(unplaced, [])


NAMES = [f"x{number}" for number in range(8)]
SAID = ["text x0", "text x1", "text x2", "fresh", "fresh 2", "fresh 3"]
PAIRS = [(text_digest(a), text_digest(b)) for a, b in itertools.combinations(SAID, 2)]
FAMILIES = ["room", "lake"]


@st.composite
def rounds(draw):
    families = {name: draw(st.sampled_from(FAMILIES)) for name in NAMES}
    held = draw(st.lists(st.sampled_from(NAMES), unique=True))
    duplicates = draw(st.sampled_from(["reject", "near", "keep"]))
    # Entries may hold one text only where the bank keeps them.
    said = {name: draw(st.sampled_from([name, "x0"])) if duplicates == "keep" else name for name in held}
    previous = [entry(name, f"text {said[name]}", order, families[name]) for order, name in enumerate(held)]
    texts = st.sampled_from([None, "", "text x0", "text x1", "fresh", "fresh 2", "fresh 3", "y" * 60])
    ids_ = st.sampled_from([*NAMES, "n0", "n1", "n2", None])
    asked = st.builds(
        operation,
        st.sampled_from(["add", "update", "merge", "merge", "keep", "drop", "return", "nonsense"]),
        ids_,
        texts,
        st.sampled_from(FAMILIES),
        parents=st.lists(st.sampled_from([*NAMES, "n0"]), max_size=3),
    )
    scores = [
        score(
            name, draw(st.integers(1, 5)), draw(st.sampled_from([-1.0, 0.0, 1.0])),
            draw(st.sampled_from([f"text {said[name]}", "fresh", "of before"])),
        )
        for name in held[::2]
    ]  # fmt: skip
    options = {"capacity": draw(st.integers(1, 6)), "eviction": draw(st.sampled_from(["fifo", "least_useful"]))}
    options["duplicates"] = duplicates
    return previous, draw(st.lists(asked, max_size=14)), scores, options


@settings(deadline=None, max_examples=30)
@given(rounds(), st.data())
def test_columns_give_what_the_plain_way_gives(given_round, data):
    previous, operations, scores, options = given_round
    refused = {item.operation_id: "no" for item in operations if data.draw(st.booleans())}
    refused, evict = data.draw(st.sampled_from([refused, {}])), data.draw(st.sampled_from([True, True, False]))
    anywhere = data.draw(st.booleans())
    pairs = data.draw(st.dictionaries(st.sampled_from(PAIRS), st.sampled_from([0.9, 0.95, 1.0]), max_size=8))
    alike = [Resemblance(content_digest=a, other_digest=b, similarity=value) for (a, b), value in pairs.items()]
    both = pairs | {(b, a): value for (a, b), value in pairs.items()}
    rest = {"round": ROUND, "evict": evict, "refused": refused}
    rules = Rules(BankConfig(**options), 50, resemblance_anywhere=anywhere)
    result = consolidate(Snapshot.of(ROUND - 1, previous), operations, scores, rules, resemblances=alike, **rest)
    plain = reference(
        previous, operations, scores, rules.bank, max_characters=50, alike=both, anywhere=anywhere, **rest
    )
    # In two pieces it comes to the same.
    pieces = Consolidation(Snapshot.of(ROUND - 1, previous), rules, SimilarPairs(alike), round=ROUND)
    cut = data.draw(st.integers(0, len(operations)))
    if not refused:
        told = [event for part in (operations[:cut], operations[cut:]) for event in pieces.apply(part)]
        assert told == [event for event in result.events if event.kind != "evict"]
        assert evict or pieces.result().changes == result.changes
    assert held(result) == plain.entries and result.size == len(plain.entries)
    assert result.events == plain.events and result.new_texts == plain.new_texts
    # The changes are all there is: no entry that is as it was, each once, rows before and after as the banks hold them.
    before = {item.entry_id: item for item in previous}
    after = {item.entry_id: item for item in plain.entries}
    named = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    assert result.changes == [Change(before.get(name), after.get(name)) for name in named]


@settings(deadline=None, max_examples=30)
@given(rounds())
def test_every_change_has_its_event(given_round):
    previous, operations, scores, options = given_round
    result = run(previous, operations, scores, **options)
    asked_for = [event.operation_id for event in result.events if event.kind != "evict"]
    assert asked_for == [item.operation_id for item in operations]
    assert [event.event_id for event in result.events] == [f"r5-e{n}" for n in range(len(result.events))]
    # An entry no event speaks of is the very same row.
    touched = {event.entry_id for event in result.events if event.kind not in ("rejected", "keep", "return")}
    touched |= {parent for event in result.events for parent in event.parents}
    assert {(change.after or change.before).entry_id for change in result.changes} <= touched


@settings(deadline=None, max_examples=30)
@given(rounds())
def test_a_snapshot_is_sound(given_round):
    previous, operations, scores, options = given_round
    result = run(previous, operations, scores, **options)
    entries = held(result)
    assert len({item.entry_id for item in entries}) == len(entries)
    assert len({item.order for item in entries}) == len(entries)
    for family in FAMILIES:
        digests = [item.content_digest for item in entries if item.family == family]
        assert len(digests) <= options["capacity"]
        assert options["duplicates"] == "keep" or len(set(digests)) == len(digests)
    without_file = {item.content_digest for item in entries if not item.segment}
    assert set(result.new_texts) == without_file
    assert all(text_digest(text) == digest for digest, text in result.new_texts.items())


@settings(deadline=None, max_examples=25)
@given(rounds(), st.randoms(use_true_random=False))
def test_input_order_of_entries_and_scores_and_interleaving_of_families_do_not_matter(given_round, random):
    previous, operations, scores, options = given_round
    # Ids that one family creates while another asks for them would couple the two.
    operations = [
        dataclasses.replace(item, entry_id=f"{item.entry_id}-{item.family}")
        if item.kind in ("add", "merge") and item.entry_id
        else item
        for item in operations
    ]
    result = run(previous, operations, scores, **options)
    shuffled = random.sample(previous, len(previous))
    other = run(shuffled, operations, scores[::-1], **options)
    assert (held(other), other.changes, other.events) == (held(result), result.changes, result.events)
    by_family = sorted(operations, key=lambda item: item.family)  # stable: a family's own order stays
    other = run(previous, by_family, scores, **options)
    for family in FAMILIES:
        mine = [dataclasses.replace(item, order=0) for item in held(result) if item.family == family]
        assert mine == [dataclasses.replace(item, order=0) for item in held(other) if item.family == family]
