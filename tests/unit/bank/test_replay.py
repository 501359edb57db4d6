"""Replay: the events of a run and the operations they name give every bank again, and every entry's episodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.changes import Change, open_snapshot
from crl.bank.overlay import Overlay
from crl.bank.replay import Replayed, replay, replayed_bank
from crl.bank.segments import text_digest
from crl.bank.snapshot import STORAGE, Snapshot
from crl.config import Method
from crl.config.load import load_experiment
from crl.errors import RecordDamaged
from crl.records import (
    Approval,
    BankChange,
    BankEvent,
    BankSnapshot,
    EntryScore,
    Operation,
    rows_of,
    schema_of,
    table_of,
)
from crl.rounds.context import StageContext
from crl.rounds.publish import publish
from crl.rounds.recipe import recipe_of, tables_of
from tests.unit.bank.test_consolidate import entry

FAMILIES = ["room", "lake"]
QUICKSTART = load_experiment(Path(__file__).parents[3] / "conf/quickstart.yaml").method


class Vectors:
    """An embedder for texts that nobody searches, and the only service there is."""

    name, dimension = "none", 2

    def embedder(self):
        return self

    def embed(self, texts):
        return np.ones((len(texts), 2), dtype=np.float32)


class StoredRun:
    """A run whose banks are published by the real stages; its tables are kept in memory."""

    path = Path("nowhere")

    def __init__(self, **bank) -> None:
        recipe = {"bank": {"capacity": 3, "eviction": "fifo"} | bank, "merge": {"every": 1}, "approve_bank": True}
        plain = QUICKSTART.model_dump()
        self.method = Method.model_validate(plain | {"recipe": plain["recipe"] | recipe})
        self.recipe = recipe_of(self.method)
        self.tables = {}
        self.rounds = 0

    def read(self, round_number, stage, row_type):
        return self.tables.get((round_number, stage, row_type), schema_of(row_type).empty_table())

    def context(self, stage: str) -> StageContext:
        number, tables = self.rounds, self.tables

        class Writer:
            directory = Path("nowhere")

            def write(self, row_type, table):
                tables[number, stage, row_type] = table

            def share(self, relative, content):
                """Texts and vectors are no part of this."""

        return StageContext(
            method=self.method, recipe=self.recipe, stage=self.recipe.stage(self.method, number, stage),
            round_number=number, reader=self, writer=Writer(), services=Vectors(), progress=lambda metrics: None,
        )  # fmt: skip

    def begin(self, imported=()) -> None:
        events = [
            BankEvent(
                event_id=f"r0-e{index}", round=0, kind="import", entry_id=row.entry_id, family=row.family,
                operation_id=None, before_digest=None, after_digest=row.content_digest, parents=[], reason=None,
                repeats=None,
            )
            for index, row in enumerate(imported)
        ]  # fmt: skip
        publish(
            self.context("initialize"), Snapshot.of(0, []).table, None, [Change(None, row) for row in imported], events
        )

    def play(self, distilled, merged=(), refused=(), scores=()) -> None:
        self.tables[self.rounds, "credit", EntryScore] = table_of(EntryScore, scores)
        self.rounds += 1
        self.tables[self.rounds, "distill", Operation] = table_of(Operation, distilled)
        self.tables[self.rounds, "merge", Operation] = table_of(Operation, merged)
        decision = Approval(
            round=self.rounds, decision="partly", person="Ada", reason=None,
            operations=len(distilled), rejected_operations=list(refused),
        )  # fmt: skip
        self.tables[self.rounds, "approve", Approval] = table_of(Approval, [decision])
        self.recipe.stage(self.method, self.rounds, "consolidate").run(self.context("consolidate"))

    @property
    def table_of(self):
        return tables_of(self.recipe, self.method, self.read)

    def operations_of(self, number):
        return [
            row for stage in ("distill", "merge") for row in rows_of(Operation, self.read(number, stage, Operation))
        ]

    def events_of(self, number):
        return rows_of(BankEvent, self.table_of(BankEvent, number))

    def replayed(self):
        found: list[Replayed] = []
        for number in range(self.rounds + 1):
            before = found[-1] if found else None
            events, changes = self.events_of(number), self.table_of(BankChange, number)
            found.append(replayed_bank(before, number, events, self.operations_of(number), changes))
        return found


def ask(number, index, kind, entry_id=None, text=None, family="room", parents=(), episodes=None) -> Operation:
    return Operation(
        operation_id=f"r{number}-o{index}", distillation_id=f"r{number}-d{index}", generation_id=f"r{number}-g{index}",
        round=number, index=index, kind=kind, family=family, entry_id=entry_id, parents=list(parents),
        episode_ids=[f"r{number}-e{index}"] if episodes is None else episodes, text=text,
        embedder_cut=None if text is None else text.endswith("3"),
    )  # fmt: skip


NAMES = [f"x{number}" for number in range(7)]
TEXTS = [f"text {number}" for number in range(9)]


@st.composite
def asked_in(draw, number, first=0):
    """Operations of one stage of a round; most name entries that may well be there."""
    asked = []
    for index in range(first, first + draw(st.integers(0, 6))):
        kind = draw(
            st.sampled_from(["add", "add", "add", "update", "update", "merge", "merge", "drop", "keep", "return"])
        )
        name = draw(st.sampled_from(NAMES)) if kind != "merge" else f"m{number}-{index}"
        text = draw(st.sampled_from(TEXTS)) if kind in ("add", "update", "merge") else None
        parents = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)) if kind == "merge" else []
        asked.append(ask(number, index, kind, name, text, draw(st.sampled_from(FAMILIES)), parents))
    return asked


@st.composite
def runs(draw):
    run = StoredRun(
        capacity=draw(st.integers(1, 4)),
        eviction=draw(st.sampled_from(["fifo", "least_useful"])),
        duplicates=draw(st.sampled_from(["reject", "keep"])),
    )
    held = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    run.begin(
        [entry(name, f"old {name}", 3 * order, draw(st.sampled_from(FAMILIES))) for order, name in enumerate(held)]
    )
    for number in range(1, draw(st.integers(1, 4)) + 1):
        distilled = draw(asked_in(number))
        merged = draw(asked_in(number, first=100))
        refused = [row.operation_id for row in [*distilled, *merged] if draw(st.integers(0, 5)) == 0]
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
        scores = [
            EntryScore(
                entry_id=name, content_digest=text_digest(draw(st.sampled_from([f"old {name}", *TEXTS[:2]]))), uses=2,
                mean_outcome=draw(st.sampled_from([-1.0, 1.0])), last_used_round=0,
            )
            for name in names
        ]  # fmt: skip
        run.play(distilled, merged, refused, scores)
    return run


def logical(row):
    """A row without the two columns that say where its files lie."""
    return None if row is None else dataclasses.replace(row, **dict.fromkeys(STORAGE, ""))


@settings(deadline=None, max_examples=15)
@given(runs())
def test_events_and_operations_give_every_bank_again(run):
    for bank in run.replayed():
        (recorded,) = rows_of(BankSnapshot, run.table_of(BankSnapshot, bank.round))
        assembled = open_snapshot(bank.round, run.table_of)
        assert bank.digest == recorded.digest == assembled.digest() == bank.snapshot.digest()
        assert list(map(logical, bank.snapshot.entries())) == list(map(logical, assembled.entries()))
        # What the round stored is what comes out.
        stored = rows_of(BankChange, run.table_of(BankChange, bank.round))
        assert {(row.entry_id, row.removed) for row in stored} == {
            ((change.after or change.before).entry_id, change.after is None) for change in bank.changes
        }


@settings(deadline=None, max_examples=15)
@given(runs())
def test_the_lineage_of_every_entry_reaches_the_episodes_it_was_made_from(run):
    """Reckoned from operations along the events, without a row of the bank but the imported ones."""
    episodes = {row.entry_id: list(row.episode_ids) for row in open_snapshot(0, run.table_of).entries()}
    for number in range(1, run.rounds + 1):
        asked = {row.operation_id: row for row in run.operations_of(number)}
        for event in run.events_of(number):
            if event.kind in ("add", "update", "merge"):
                old = [each for parent in event.parents for each in episodes.pop(parent)]
                old += episodes.get(event.entry_id, [])
                episodes[event.entry_id] = list(dict.fromkeys([*old, *asked[event.operation_id].episode_ids]))
            elif event.kind in ("drop", "evict"):
                del episodes[event.entry_id]
        held = {row.entry_id: row.episode_ids for row in open_snapshot(number, run.table_of).entries()}
        assert held == episodes and all(held.values())


@pytest.fixture
def told():
    """Every kind of event in a run of three rounds."""
    run = StoredRun(capacity=2)
    run.begin([entry("old", "an old text", 7)])
    run.play([ask(1, 0, "add", "a", "A"), ask(1, 1, "add", "b", "A"), ask(1, 2, "return")])
    run.play([ask(2, 0, "update", "a", "A better"), ask(2, 1, "keep", "old"), ask(2, 2, "add", "b", "B", "lake")])
    merged = [ask(3, 100, "merge", "m", "one of two", parents=["old", "a"], episodes=[])]
    run.play([ask(3, 0, "drop", "b", family="lake")], merged)
    run.play([ask(4, 0, "add", "c", "C"), ask(4, 1, "add", "d", "D")])
    return run


def test_a_run_with_every_kind_of_event(told):
    kinds = [event.kind for number in range(told.rounds + 1) for event in told.events_of(number)]
    assert set(kinds) == {"import", "add", "update", "merge", "drop", "evict", "keep", "return", "rejected"}
    before_last = told.replayed()[3].snapshot.entries()
    (row,) = before_last
    assert (row.entry_id, row.episode_ids, row.parents) == ("m", ["e-old", "r1-e0", "r2-e0"], ["old", "a"])
    assert [row.entry_id for row in told.replayed()[-1].snapshot.entries()] == ["c", "d"]


def test_an_event_or_an_operation_that_is_lost_or_changed_is_noticed(told):
    recorded = {number: rows_of(BankSnapshot, told.table_of(BankSnapshot, number))[0].digest for number in range(5)}

    def differs() -> bool:
        try:
            return {bank.round: bank.digest for bank in told.replayed()} != recorded
        except RecordDamaged:
            return True

    assert not differs()
    for number in range(5):
        stage = "initialize" if number == 0 else "consolidate"
        events = told.events_of(number)
        for index, event in enumerate(events):
            if event.kind in ("keep", "return", "rejected"):
                continue
            for instead in ([], [dataclasses.replace(event, after_digest=text_digest("forged"))]):
                listed = [*events[:index], *instead, *events[index + 1 :]]
                told.tables[number, stage, BankEvent] = table_of(BankEvent, listed)
                assert differs(), f"{event.event_id} {instead}"
        told.tables[number, stage, BankEvent] = table_of(BankEvent, events)
        for source in ("distill", "merge"):
            asked = rows_of(Operation, told.read(number, source, Operation))
            for index, operation in enumerate(asked):
                if operation.kind in ("add", "update", "merge") and operation.operation_id != "r1-o1":
                    forged = dataclasses.replace(operation, generation_id="forged")
                    told.tables[number, source, Operation] = table_of(
                        Operation, [*asked[:index], forged, *asked[index + 1 :]]
                    )
                    assert differs(), operation.operation_id
            told.tables[number, source, Operation] = table_of(Operation, asked)
    assert not differs()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"entry_id": None}, "names no entry"),
        ({"before_digest": text_digest("other")}, "the entry has text"),
        ({"parents": ["nobody"]}, "parents nobody"),
        ({"kind": "import"}, "stored no such row"),
        ({"kind": "drop"}, "changes no text"),
        ({"operation_id": "r9-o9"}, "no operation r9-o9"),
        ({"family": "lake"}, "no operation"),
        ({"before_digest": None, "entry_id": "x"}, "no such entry"),
    ],
)
def test_an_event_that_does_not_fit_is_named(changes, found):
    before = Snapshot.of(1, [entry("a", "A")])
    event = BankEvent(
        event_id="r2-e0", round=2, kind="update", entry_id="a", family="room", operation_id="r2-o0",
        before_digest=text_digest("A"), after_digest=text_digest("B"), parents=[], reason=None, repeats=None,
    )  # fmt: skip
    operations = {"r2-o0": ask(2, 0, "update", "a", "B")}
    assert replay(before, [event], operations)
    with pytest.raises(RecordDamaged, match=f"r2-e0.*{found}"):
        replay(before, [dataclasses.replace(event, **changes)], operations)


def test_an_overlay_knows_who_holds_a_text_as_it_changes():
    rows = [entry("a", "A", 0), entry("b", "A", 1, "lake"), entry("c", "C", 2)]
    bank = Overlay(Snapshot.of(1, rows), ["a", "gone"], [text_digest("A")])
    assert bank.holders("room", text_digest("A")) == ["a"] and bank.get("gone") is None and bank.next_order == 3
    bank.replace(rows[0], entry("a", "A2", 0))
    assert not bank.holders("room", text_digest("A")) and bank.holders("lake", text_digest("A")) == ["b"]
    bank.add(entry("d", "A", 3))
    assert bank.holders("room", text_digest("A")) == ["d"] and bank.next_order == 4
    assert [change.after.entry_id for change in bank.changes()] == ["a", "d"]
