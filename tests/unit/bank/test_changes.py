"""Snapshots stored as changes: what is put together again is what was, whatever came and went."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random

import pyarrow as pa
import pytest

from crl.bank.changes import LONGEST_CHAIN, Change, applied, files_of, open_snapshot, stored, summary_of
from crl.bank.snapshot import Snapshot
from crl.errors import RecordDamaged
from crl.records import BankChange, BankEntry, BankSnapshot, Row, schema_of, table_of
from tests.marks import sampled

Store = dict[tuple[type[Row], int], pa.Table]


def entry(name: str, order: int, text: str, **more: object) -> BankEntry:
    digest = hashlib.sha256(text.encode()).hexdigest()
    columns = {
        "entry_id": name, "family": "room", "content_digest": digest, "segment": f"bank/segments/{order}.parquet",
        "embedding_file": f"bank/embeddings/{order}.parquet", "version": 1, "created_round": 1, "updated_round": 1,
        "order": order, "operation_id": "o", "distillation_id": "d", "generation_id": "g", "episode_ids": ["r1"],
        "parents": [], "embedder_cut": False,
    }  # fmt: skip
    return BankEntry(**{**columns, **more})


class Recorder:
    """The tables that rounds wrote, kept in memory."""

    def __init__(self) -> None:
        self.tables: Store = {}
        self.truth: list[dict[str, BankEntry]] = []

    def table_of(self, row_type: type[Row], round_number: int) -> pa.Table:
        assert round_number >= 0
        return self.tables.get((row_type, round_number), schema_of(row_type).empty_table())

    def publish(self, after: dict[str, BankEntry]) -> BankSnapshot:
        number = len(self.truth)
        before = self.truth[-1] if self.truth else {}
        names = sorted({*before, *after})
        changes = [Change(before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
        storage = stored(summary_of(number - 1, self.table_of) if number else None, changes, round=number)
        self.tables[BankChange, number] = storage.changes
        self.tables[BankSnapshot, number] = table_of(BankSnapshot, [storage.summary])
        if storage.base:
            whole = applied(table_of(BankEntry, before.values()), [storage.changes])
            self.tables[BankEntry, number] = Snapshot(number, whole).table
        self.truth.append(dict(after))
        return storage.summary


def by_age(bank: dict[str, BankEntry]) -> list[BankEntry]:
    return sorted(bank.values(), key=lambda each: (each.order, each.entry_id))


def digest_by_hand(bank: dict[str, BankEntry]) -> str:
    total = 0
    for each in bank.values():
        row = dataclasses.asdict(each)
        values = [value for name, value in row.items() if name not in ("segment", "embedding_file")]
        total += int(hashlib.sha256(json.dumps(values).encode()).hexdigest(), 16)
    return f"{total % 2**256:064x}"


@pytest.mark.parametrize("seed", sampled(range(8), 4))
def test_every_round_comes_back_as_it_was(seed: int) -> None:
    chance, recorder, bank = random.Random(seed), Recorder(), {}
    order = 0
    recorder.publish(bank)
    for number in range(1, 90):
        for _ in range(chance.choice((0, 1, 2, 9))):
            what = chance.random()
            if what < 0.5 or not bank:
                order += 1
                name = f"e{chance.randrange(40)}"
                bank[name] = entry(name, order, f"text {order} ü", created_round=number)
            elif what < 0.75:
                name = chance.choice(sorted(bank))
                bank[name] = dataclasses.replace(bank[name], version=bank[name].version + 1, updated_round=number)
            else:
                del bank[chance.choice(sorted(bank))]
        recorder.publish(bank)
    for number, expected in enumerate(recorder.truth):
        opened = open_snapshot(number, recorder.table_of)
        assert opened.entries() == by_age(expected)
        summary = summary_of(number, recorder.table_of)
        assert summary.digest == opened.digest() == digest_by_hand(expected)
        assert (summary.entries, summary.round) == (len(expected), number)


def test_a_base_comes_when_changes_outnumber_entries_and_after_a_long_chain() -> None:
    recorder = Recorder()
    bank = {f"e{n}": entry(f"e{n}", n, f"t{n}") for n in range(100)}
    assert recorder.publish({}).base_round == 0
    assert recorder.publish(bank).base_round == 0, "100 changes do not outnumber 100 entries"
    bank = {**bank, "e0": dataclasses.replace(bank["e0"], version=2)}
    assert recorder.publish(bank).base_round == 2
    for number in range(3, 2 + LONGEST_CHAIN):
        assert recorder.publish(bank).base_round == 2, number
    assert recorder.publish(bank).base_round == 2 + LONGEST_CHAIN
    bases = [number for row_type, number in recorder.tables if row_type is BankEntry]
    assert bases == [0, 2, 2 + LONGEST_CHAIN]


def test_tables_that_do_not_add_up_are_refused() -> None:
    recorder = Recorder()
    recorder.publish({})
    recorder.publish({"a": entry("a", 0, "one")})
    recorder.tables[BankChange, 1] = schema_of(BankChange).empty_table()
    with pytest.raises(RecordDamaged, match="0 entries"):
        open_snapshot(1, recorder.table_of)


def test_files_of_texts_that_left_are_found_again() -> None:
    recorder, gone = Recorder(), entry("a", 0, "one")
    recorder.publish({})
    recorder.publish({"a": gone})
    recorder.publish({})
    found = files_of([gone.content_digest, "0" * 64], 2, recorder.table_of)
    assert found == {gone.content_digest: (gone.segment, gone.embedding_file)}


def test_rows_are_found_one_by_one_and_together() -> None:
    snapshot = Snapshot.of(3, [entry("b", 1, "two"), entry("a", 0, "one"), entry("c", 7, "one")])
    assert snapshot.rows_of(list("abcx")) == [0, 1, 2, None]
    assert snapshot.rows_of(["c", "x", "a", "c"]) == [2, None, 0, 2]
    assert snapshot.taken([2])[0].entry_id == "c" and len(snapshot) == 3
    assert snapshot.digest() == Snapshot.of(9, snapshot.entries()[::-1]).digest()
