"""`bank.duplicates: keep`: entries of one family with equal texts, where they are placed, searched, merged and shown.

What consolidation and replay make of them in generated rounds is in `test_consolidate.py` and `test_replay.py`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from crl.audit.audit import problems_of
from crl.bank.retrieve import BankRetriever
from crl.bank.segments import load_embeddings, load_texts, text_digest
from crl.bank.snapshot import Snapshot
from crl.config import BankConfig, RetrievalConfig
from crl.policies.embedders import LexicalEmbedder
from crl.records import Credit, EntryScore, rows_of
from crl.report.bank import entries_after
from crl.report.why import why
from crl.rounds.recipe import recorded_bank
from crl.transfer.gather import gather
from tests.record.test_import import begin
from tests.unit.bank.test_consolidate import entry, held, operation, run
from tests.unit.report.scripted import Ask, ScriptedRun, experiment

TEXT = "take C then F"


def test_equal_texts_are_entries_of_their_own_and_one_text():
    asked = [operation("add", "n1", TEXT), operation("add", "n2", TEXT), operation("add", "n3", "as a says")]
    result = run([entry("a", "as a says")], asked, duplicates="keep")
    assert [(row.entry_id, row.segment) for row in held(result)] == [
        ("a", "bank/segments/a.parquet"), ("n1", ""), ("n2", ""), ("n3", "bank/segments/a.parquet"),
    ]  # fmt: skip
    assert result.new_texts == {text_digest(TEXT): TEXT}
    assert [event.kind for event in result.events] == ["add"] * 3
    assert len({row.generation_id for row in held(result)}) == 4, "each output has an entry to be scored by"
    refused = run([entry("a", "as a says")], asked)
    assert [event.reason for event in refused.events if event.kind == "rejected"] == ["duplicate", "duplicate"]


def test_only_what_changes_nothing_is_still_rejected():
    previous = [entry("a", "A", 0), entry("b", "B", 1)]
    asked = [operation("update", "a", "A"), operation("update", "a", "B"), operation("add", "b", "C")]
    result = run(previous, asked, duplicates="keep")
    assert [(event.kind, event.reason) for event in result.events] == [
        ("rejected", "unchanged"), ("update", None), ("rejected", "entry_exists"),
    ]  # fmt: skip
    assert {row.content_digest for row in held(result)} == {text_digest("B")}


def test_the_capacity_counts_twins_one_by_one():
    asked = [operation("add", f"n{index}", TEXT) for index in range(5)]
    result = run([], asked, duplicates="keep", capacity=3)
    assert [row.entry_id for row in held(result)] == ["n2", "n3", "n4"]


def test_twins_may_be_merged_into_their_own_text_or_into_anothers():
    previous = [entry("a", TEXT, 0), entry("b", TEXT, 1), entry("c", "other", 2)]
    asked = [
        operation("merge", "m1", TEXT, parents=["a", "b"]),
        operation("merge", "m2", "other", parents=["m1"]),
    ]
    result = run(previous, asked, duplicates="keep")
    assert [(row.entry_id, row.content_digest) for row in held(result)] == [
        ("c", text_digest("other")), ("m2", text_digest("other")),
    ]  # fmt: skip
    assert held(result)[1].episode_ids == ["e-a", "e-b", *asked[0].episode_ids, *asked[1].episode_ids]


def test_retrieval_spreads_over_twins_by_their_counters():
    entries = [entry(name, TEXT, order) for order, name in enumerate("abc")]
    bank = BankRetriever(
        Snapshot.of(2, entries), np.tile(np.array([1.0, 0.0], np.float32), (3, 1)), [],
        RetrievalConfig(rank_score="fraction"), round=3, bank_round=2,
    )  # fmt: skip
    found = [bank.retrieve(f"e{index}", "room", np.array([1.0, 0.0], np.float32)) for index in range(6)]
    assert all([row.entry_id for row in rows] == ["a", "b", "c"] for rows in found), "equal cosines stand by age"
    chosen = [row.entry_id for rows in found for row in rows if row.chosen]
    assert chosen[:3] == ["a", "b", "c"] and Counter(chosen) == {"a": 2, "b": 2, "c": 2}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Twins of one round and of a later one; the first is used twice, the last once and then rewritten."""
    made = experiment(method__recipe__bank__duplicates="keep", method__recipe__retrieval__index="approximate")
    with ScriptedRun(tmp_path_factory.mktemp("runs"), made) as scripted:
        scripted.initialize()
        first, second = scripted.play(Ask("add", TEXT), Ask("add", TEXT))
        (third,) = scripted.play(Ask("add", TEXT), guided=[(first, True), (first, False)])
        scripted.play(Ask("update", "take C, then F", entry=third), guided=[(third, True)])
        (merged,) = scripted.play(merges=[Ask("merge", TEXT, parents=(first, second))])
        yield scripted, first, second, third, merged


def test_a_run_with_twins_verifies_and_replays(told):
    scripted, *_ = told
    assert problems_of(scripted.run, scripted.recipe) == []
    before = recorded_bank(scripted.run, scripted.recipe, 2)
    assert before.table["content_digest"].to_pylist() == [text_digest(TEXT)] * 3
    assert len(set(before.table["segment"].to_pylist())) == 1, "one text, stored once"
    assert load_texts(scripted.path, before.table) == {text_digest(TEXT): TEXT}
    vectors_ND = load_embeddings(scripted.run.path, before.table)
    assert np.array_equal(vectors_ND, LexicalEmbedder().embed([TEXT] * 3))


def test_every_output_is_credited_with_the_uses_of_its_own_entry(told):
    scripted, first, second, third, _ = told
    credits = [row for number in range(1, 4) for row in rows_of(Credit, scripted.run.read(number, "credit", Credit))]
    writers = {row.entry_id: row.generation_id for row in credits}
    assert len(set(writers.values())) == len(writers) == 2 and second not in writers
    scores = {row.entry_id: row.uses for row in rows_of(EntryScore, scripted.run.read(3, "credit", EntryScore))}
    assert scores == {first: 2, third: 1}


def test_each_twin_is_shown_with_its_own_story(told):
    scripted, first, second, third, merged = told
    assert [(each.entry_id, each.text, each.uses) for each in entries_after(scripted.path, 2)] == [
        (first, TEXT, 2), (second, TEXT, 0), (third, TEXT, 0),
    ]  # fmt: skip
    stories = {name: why(scripted.path, name) for name in (first, second, third, merged)}
    assert [len(stories[name].versions[0].uses) for name in (first, second, third)] == [2, 0, 1]
    assert [version.text for version in stories[third].versions] == [TEXT, "take C, then F"]
    written = {name: stories[name].versions[0].writing.operation_id for name in (first, second, third)}
    assert len(set(written.values())) == 3
    assert [parent.entry_id for parent in stories[merged].versions[0].parents] == [first, second]


def test_an_import_brings_twins_where_the_bank_keeps_them(told, tmp_path):
    bank = gather(told[0].path, 2)
    keeps = begin(tmp_path, bank, "keeps", method__recipe__bank__duplicates="keep")
    assert len(recorded_bank(keeps.run, keeps.recipe, 0)) == 3 and problems_of(keeps.run, keeps.recipe) == []
    refuses = begin(tmp_path, bank, "refuses")
    assert len(recorded_bank(refuses.run, refuses.recipe, 0)) == 1


def test_the_default_refuses_them_as_ever():
    assert BankConfig().duplicates == "reject"
