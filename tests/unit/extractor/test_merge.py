"""The sliding merge: what is shown when, whose output an entry is, and that consolidation repeats it exactly."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.consolidate import Consolidation, Rules, consolidate
from crl.bank.duplicates import SimilarPairs
from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig
from crl.extractor.merge import SlidingChunks, run_merge, whole_bank, whole_families

RULES = Rules(BankConfig(), 60)


def bank_of(kit, families):
    """Entries and texts of {family: [text, …]}, family after family."""
    entries, texts = [], {}
    for family, listed in families.items():
        for text in listed:
            digest = text_digest(f"{text}")
            texts[digest] = text
            entries.append(kit.entry(f"{family}-{text}", len(entries), digest, family))
    return entries, texts


def merge(kit, answer, families, chunk=3, **options):
    entries, texts = bank_of(kit, families)
    return merge_groups(kit, answer, entries, whole_families(entries), texts, chunk, **options)


def merge_groups(kit, answer, entries, groups, texts, chunk=3, config=RULES.bank, across=False, **options):
    policy, rules = kit.policy(answer), Rules(config, 60, merges_across=across)
    results = run_merge(
        policy,
        groups,
        texts,
        applied=kit.applied(Consolidation(Snapshot.of(5, entries), rules, SimilarPairs(), round=6)),
        **kit.merging(kit.method(chunk=chunk, **options)),
        seed_of=kit.seed_of,
        weights_digest="w",
        round=6,
    )
    operations = [row for result in results for row in result.operations]
    after = consolidate(Snapshot.of(5, entries), operations, [], rules, round=6)
    return policy, results, after


def held(after):
    return after.snapshot.entries()


def shown(result):
    return re.findall(r"^\d+\. (.*)$", result.generation.prompt, re.MULTILINE)


def test_what_was_merged_is_carried_into_the_next_chunk(kit):
    answers = iter(["MERGE 1,2: ab\nKEEP 3", "MERGE 1,3: abe\nDROP 2", "KEEP 1"])
    _, results, after = merge(kit, lambda *_: next(answers), {"room": ["a", "b", "c", "d", "e", "f"]})
    assert [shown(result) for result in results] == [["a", "b", "c"], ["ab", "d", "e"], ["abe", "f"]]
    assert [result.distillation.distillation_id for result in results] == ["m-r6-room-0", "m-r6-room-1", "m-r6-room-2"]
    # In the bank's age order: c and f were there before the merged entry.
    assert [text_digest(text) for text in ("c", "f", "abe")] == [entry.content_digest for entry in held(after)]
    merged = held(after)[-1]
    assert merged.generation_id == results[1].generation.generation_id == "g-m-r6-room-1"
    assert merged.parents == ["x-m-r6-room-0-o0", "room-e"]
    assert merged.episode_ids == ["e-room-a", "e-room-b", "e-room-e"]
    first, *_ = [row for row in results[0].operations if row.kind == "merge"]
    assert first.generation_id == results[0].generation.generation_id
    assert [event.kind for event in after.events] == ["merge", "keep", "merge", "drop", "keep"]


def test_rows_name_what_was_shown(kit):
    _, results, _ = merge(kit, lambda *_: "KEEP 1\nDROP 2,3", {"room": ["a", "b", "c"]})
    ((row, operations, generation),) = results
    assert (row.kind, row.verdict, row.operations) == ("merge", "merge", 3)
    assert (row.episode_id, row.guiding_entry_id) == (None, None)
    assert row.source_entry_ids == ["room-a", "room-b", "room-c"]
    assert [(item.kind, item.entry_id, item.text) for item in operations] == [
        ("keep", "room-a", "a"),
        ("drop", "room-b", None),
        ("drop", "room-c", None),
    ]
    assert (generation.stage, generation.kind) == ("merge", "merge")


@pytest.mark.parametrize("answer", ["nonsense", "MERGE 1,9: x", "ADD: x", "KEEP 1\nKEEP 1", ""])
def test_a_malformed_output_leaves_its_chunk(kit, answer):
    _, results, after = merge(kit, lambda *_: answer, {"room": ["a", "b", "c", "d"]})
    assert [shown(result) for result in results] == [["a", "b", "c"]]
    assert [entry.entry_id for entry in held(after)] == ["room-a", "room-b", "room-c", "room-d"]
    assert after.events == [] and results[0].distillation.verdict == "malformed"


def test_a_prompt_that_does_not_fit_leaves_its_chunk(kit):
    _, results, after = merge(kit, lambda *_: "DROP 1", {"room": ["a" * 60, "b" * 60]}, context=60)
    assert [result.distillation.reason_code for result in results] == ["prompt_too_long"]
    assert len(held(after)) == 2


def test_families_advance_side_by_side_and_never_mix(kit):
    families = {"room": ["a", "b", "c", "d", "e"], "lake": ["f", "g"], "lone": ["h"]}
    policy, results, after = merge(kit, lambda *_: "MERGE 1,2: same", families)
    assert [len(session.prompts) for session in policy.sessions] == [2, 1]
    assert [result.distillation.family for result in results] == ["lake", "room", "room"]
    assert [shown(result) for result in results] == [["f", "g"], ["a", "b", "c"], ["same", "d", "e"]]
    assert sorted(entry.family for entry in held(after)) == ["lake", "lone", "room", "room", "room"]


def test_a_merge_into_the_text_of_an_entry_not_shown_changes_nothing_on_either_side(kit):
    answers = iter(["MERGE 1,2: e", "KEEP 1"])
    _, results, after = merge(kit, lambda *_: next(answers), {"room": ["a", "b", "c", "d", "e"]})
    assert [shown(result) for result in results] == [["a", "b", "c"], ["d", "e"]]
    assert [event.reason for event in after.events if event.kind == "rejected"] == ["duplicate"]
    assert len(held(after)) == 5


def test_whole_families_start_with_the_oldest(kit):
    entries, _ = bank_of(kit, {"room": ["a", "b"], "lake": ["c"]})
    plan = whole_families(entries[::-1])
    assert list(plan) == ["lake", "room"] and plan["room"] == [entries[:2]]


def test_groups_are_walked_one_after_the_other_and_nothing_is_carried_across(kit):
    entries, texts = bank_of(kit, {"room": ["a", "b", "c", "d", "e", "f", "g", "h"]})
    groups = {"room": [[entries[n] for n in (0, 2, 3, 5)], [entries[n] for n in (1, 6)]]}
    answers = iter(["MERGE 1,2: ac\nKEEP 3", "MERGE 1,2: acf", "MERGE 1,2: e"])
    _, results, after = merge_groups(kit, lambda *_: next(answers), entries, groups, texts)
    assert [shown(result) for result in results] == [["a", "c", "d"], ["ac", "f"], ["b", "g"]]
    assert [result.distillation.distillation_id for result in results] == [f"m-r6-room-{step}" for step in range(3)]
    # The last one asks for the text of an entry that was never shown: its parents stay.
    assert [event.reason for event in after.events if event.kind == "rejected"] == ["duplicate"]
    assert [text_digest(text) for text in "bdegh"] == [entry.content_digest for entry in held(after)[:-1]]


def test_a_text_that_is_held_elsewhere_is_not_carried(kit):
    entries, texts = bank_of(kit, {"room": ["a", "b", "c", "d"]})
    answers = iter(["MERGE 1,2: d", "KEEP 1"])
    groups = {"room": [entries[:3]]}
    _, results, after = merge_groups(kit, lambda *_: next(answers), entries, groups, texts, chunk=2)
    assert [shown(result) for result in results] == [["a", "b"]] and len(held(after)) == 4


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(2, 8), st.data())
def test_every_entry_is_read_once_and_the_walk_ends(count, chunk, data):
    plan, read, steps = SlidingChunks([[f"x{n}" for n in range(count)]], chunk), [], 0
    while (step := plan.take()) is not None:
        steps += 1
        assert 2 <= len(step) <= chunk
        read += [name for name in step if name.startswith("x")]
        merges = data.draw(st.integers(0, len(step) // 2))
        plan.carry([f"merged{steps}-{n}" for n in range(merges)])
    assert read == [f"x{n}" for n in range(count)][: len(read)] and count - len(read) <= 1
    assert plan.take() is None


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(2, 5), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_consolidation_repeats_the_merge(kit, seed, chunk, sizes):
    """Every step after the first shows what the bank then holds: no operation names an entry that is gone."""

    def answer(prompt, generator):
        numbers = generator.permutation(chunk)[: generator.integers(1, chunk + 1)] + 1
        lines = []
        while len(numbers):
            take, numbers = numbers[:2], numbers[2:]
            text = f"merged {seed} {generator.integers(6)}"
            word = generator.choice(["KEEP", "DROP", "MERGE"])
            listed = ",".join(map(str, take))
            lines.append(f"MERGE {listed}: {text}" if word == "MERGE" and len(take) == 2 else f"DROP {listed}")
        return "\n".join(lines)

    families = {f"f{n}": [f"t{n}-{m}" for m in range(size)] for n, size in enumerate(sizes)}
    _, results, after = merge(kit, answer, families, chunk=chunk)
    assert {event.reason for event in after.events if event.kind == "rejected"} <= {"duplicate"}
    # Before each step, the bank as consolidated so far holds the very texts the step shows.
    entries, texts = bank_of(kit, families)
    for result in results:
        texts_now = {entry.entry_id: texts[entry.content_digest] for entry in entries}
        assert shown(result) == [texts_now[entry_id] for entry_id in result.distillation.source_entry_ids]
        step = consolidate(Snapshot.of(5, entries), result.operations, [], RULES, round=6)
        texts |= {text_digest(row.text): row.text for row in result.operations if row.text}
        entries = kit.placed(held(step))
    assert [entry.entry_id for entry in entries] == [entry.entry_id for entry in held(after)]


@settings(deadline=None)
@given(st.lists(st.integers(2, 9), max_size=5), st.integers(2, 8), st.data())
def test_every_group_is_walked_through_on_its_own(sizes, chunk, data):
    groups = [[f"{group}-{n}" for n in range(size)] for group, size in enumerate(sizes)]
    plan, seen = SlidingChunks(groups, chunk), set()
    while (step := plan.take()) is not None:
        (group,) = {name.split("-")[0] for name in step}
        seen |= set(step)
        plan.carry([f"{group}-merged{len(seen)}{n}" for n in range(data.draw(st.integers(0, len(step) // 2)))])
    for group in groups:  # but for one that would be shown alone
        assert len(set(group) - seen) <= 1


@pytest.mark.parametrize("duplicates", ["reject", "keep"])
def test_a_merge_into_a_text_that_another_entry_holds_goes_by_the_bank(kit, duplicates):
    """Consolidation does what the merge reckoned with: nothing is asked of an entry that is gone."""
    entries, texts = bank_of(kit, {"room": ["a", "b", "d", "e"]})
    config = BankConfig(duplicates=duplicates)
    answers = iter(["MERGE 1,2: d", "MERGE 1,2: de" if duplicates == "keep" else "KEEP 1"])
    _, results, after = merge_groups(
        kit, lambda *_: next(answers), entries, whole_families(entries), texts, config=config
    )
    reasons = [event.reason for event in after.events if event.kind == "rejected"]
    if duplicates == "reject":
        assert [shown(result) for result in results] == [["a", "b", "d"]] and reasons == ["duplicate"]
    else:
        assert [shown(result) for result in results] == [["a", "b", "d"], ["d", "e"]] and reasons == []
        assert [entry.content_digest for entry in held(after)] == [text_digest("d"), text_digest("de")]


def merge_whole_bank(kit, answers, families, order=None, **options):
    entries, texts = bank_of(kit, families)
    if order is not None:  # the age of the entries, by id
        entries = [dataclasses.replace(entry, order=order.index(entry.entry_id)) for entry in entries]
    left = iter(answers)
    groups = whole_bank(entries)
    assert list(groups) == (["bank"] if entries else [])
    return merge_groups(
        kit, lambda *_: next(left), entries, groups, texts, across=True, merge={"scope": "bank", **options}
    )


def test_the_whole_bank_is_one_walk_by_age(kit):
    order = ["lake-f", "room-a", "lake-g", "room-b", "pond-h"]
    families = {"room": ["a", "b"], "lake": ["f", "g"], "pond": ["h"]}
    policy, results, after = merge_whole_bank(kit, ["MERGE 1,3: fg", "DROP 3"], families, order)
    assert [len(session.prompts) for session in policy.sessions] == [1, 1]
    assert [shown(result) for result in results] == [["f", "a", "g"], ["fg", "b", "h"]]
    assert [result.distillation.distillation_id for result in results] == ["m-r6-bank-0", "m-r6-bank-1"]
    assert "lake, room:" in results[0].generation.prompt and "lake, room, pond:" in results[1].generation.prompt
    assert [event.kind for event in after.events] == ["merge", "drop"]
    assert [(event.entry_id, event.family) for event in after.events] == [
        ("x-m-r6-bank-0-o0", "lake"), ("pond-h", "pond"),
    ]  # fmt: skip
    assert merge_whole_bank(kit, [], {})[1] == []


def test_a_merged_entry_is_of_the_family_that_most_of_its_parents_are_of(kit):
    families = {"room": ["a", "b"], "lake": ["f"]}
    _, results, after = merge_whole_bank(kit, ["MERGE 1,2,3: all"], families, ["lake-f", "room-a", "room-b"])
    (entry,) = held(after)
    assert (entry.family, results[0].operations[0].family, results[0].distillation.family) == ("room",) * 3
    assert entry.parents == ["lake-f", "room-a", "room-b"]
    # Of one each, that of the one that was shown first.
    for order, family in ((["lake-f", "room-a"], "lake"), (["room-a", "lake-f"], "room")):
        _, _, after = merge_whole_bank(kit, ["MERGE 2,1: both"], {"room": ["a"], "lake": ["f"]}, order)
        assert held(after)[0].family == family and held(after)[0].parents == order[::-1]


def test_a_merge_across_families_is_rejected_where_each_is_merged_on_its_own(kit):
    entries, texts = bank_of(kit, {"room": ["a"], "lake": ["f"]})
    groups = {"room": [entries]}  # as no such method groups them
    _, _, after = merge_groups(kit, lambda *_: "MERGE 1,2: both", entries, groups, texts)
    assert [event.reason for event in after.events] == ["other_family"] and len(held(after)) == 2


def test_all_that_a_change_left_is_carried_beside_a_whole_chunk(kit):
    left = iter(["MERGE 1,2: ab\nKEEP 3", "DROP 5", "KEEP 1", "MERGE 1,2: jk"])
    _, results, _ = merge(kit, lambda *_: next(left), {"room": list("abcdefghijk")}, merge={"carry": "all"})
    assert [shown(result) for result in results] == [
        ["a", "b", "c"],
        ["c", "ab", "d", "e", "f"],
        ["c", "ab", "d", "e", "g", "h", "i"],
        ["j", "k"],
    ]


def test_a_step_that_changes_nothing_is_done_with_its_entries(kit):
    left = iter(["KEEP 1,2,3", "nonsense", "MERGE 1,2: gh"])
    _, results, _ = merge(kit, lambda *_: next(left), {"room": list("abcdefgh")}, merge={"carry": "all"})
    assert [shown(result) for result in results] == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]


def test_a_prompt_that_grew_too_long_is_passed_over_and_the_walk_goes_on(kit):
    texts = [letter * 20 for letter in "abcdefghi"]
    left = iter(["DROP 1", "KEEP 1", "KEEP 1"])
    _, results, after = merge(kit, lambda *_: next(left), {"room": texts}, merge={"carry": "all"}, context=115)
    reasons = [result.distillation.reason_code for result in results]
    assert [len(result.distillation.source_entry_ids) for result in results] == [3, 5, 3]
    assert reasons == ["ok", "prompt_too_long", "ok"] and len(held(after)) == 8


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(2, 6), st.data())
def test_with_everything_carried_every_entry_is_read_once_and_the_walk_ends(count, chunk, data):
    plan, read = SlidingChunks([[f"x{n}" for n in range(count)]], chunk, beside=True), []
    while (step := plan.take()) is not None:
        new = [name for name in step if name not in read]
        assert 1 <= len(new) <= chunk and len(step) >= 2
        read += new
        plan.carry(data.draw(st.lists(st.sampled_from(step), unique=True)))
    assert read == [f"x{n}" for n in range(count)][: len(read)] and count - len(read) <= 1
