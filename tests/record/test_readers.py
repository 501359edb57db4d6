"""Readers during publishing: "the latest bank", three ways, while rounds are published at full speed.

Each reader checks size and digest against what the round recorded, that the retrievals of the next round were made from
this very bank, and that every text is there. It opens nothing for writing, and the writer waits for no one: rounds are
published until each reader has met several, and retrievals of the round that was being made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from benchmarks.made_run import Size, writing
from crl.bank.segments import load_texts
from crl.bank.snapshot import Snapshot
from crl.records import BankEntry, BankSnapshot, Retrieval, rows_of, schema_of
from crl.report.bank import banked_rounds
from crl.report.views import CATALOG, connect, write_catalog
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from tests.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MOST_ROUNDS = 2000
SIZE = Size(entries=30, changes=6, merges=1, capacity=12, groups=4, members=4, candidates=4, tokens=4, seeds=1)
COLUMNS = ", ".join(f'"{name}"' for name in schema_of(BankEntry).names)
# Every chosen entry of the next round is in the bank it was searched in, with the same text.
STRAY = """
SELECT count(*), count(*) FILTER (bank.entry_id IS NULL) FROM retrievals
LEFT JOIN bank ON bank.round = {number} AND bank.entry_id = retrievals.entry_id
    AND bank.content_digest = retrievals.content_digest
WHERE retrievals.bank_round = {number} AND chosen
"""


def check(number: int, bank: Snapshot, entries: int, digest: str) -> None:
    assert len(bank) == entries > 0, f"round {number}: {len(bank)} entries of {entries}"
    assert bank.digest() == digest, f"round {number}: not the bank that was published"


def by_library(run_path: Path) -> tuple[int, int]:
    """The library: (round, retrievals joined)."""
    run = RunDirectory.open(run_path)
    recipe = recipe_of(run.method)
    number = banked_rounds(run, recipe)[-1]
    bank = recorded_bank(run, recipe, number)
    stage = "initialize" if number == 0 else "consolidate"
    summary = rows_of(BankSnapshot, run.read(number, stage, BankSnapshot))[0]
    check(number, bank, summary.entries, summary.digest)
    assert set(load_texts(run_path, bank.table)) == set(bank.table["content_digest"].to_pylist())
    joined = 0
    if run.is_complete(number + 1, "plan"):
        held = dict(zip(*(bank.table[name].to_pylist() for name in ("entry_id", "content_digest")), strict=True))
        retrievals = run.read(number + 1, "plan", Retrieval)
        for row in retrievals.filter(pc.field("chosen")).to_pylist():
            assert row["bank_round"] == number and held[row["entry_id"]] == row["content_digest"]
            joined += 1
    return number, joined


def by_views(run_path: Path) -> tuple[int, int]:
    """The project's own connection: one state, `latest_round()`."""
    with connect(run_path) as connection:
        found = connection.sql("SELECT latest_round()").fetchall()[0][0]
        seen = by_sql(connection, found)
        # Whatever was published meanwhile: the session still sees the same.
        assert connection.sql("SELECT max(round) FROM bank_snapshots").fetchall() == [(found,)]
        pairs = "SELECT count(*) FROM bank JOIN bank_snapshots USING (round)"
        assert connection.sql(pairs).fetchall() == connection.sql("SELECT sum(entries) FROM bank_snapshots").fetchall()
        return seen


def by_catalog(run_path: Path) -> tuple[int, int]:
    """Any DuckDB client: the round is resolved first, then named."""
    import duckdb

    with duckdb.connect(str(run_path / CATALOG), read_only=True) as connection:
        connection.execute("SET VARIABLE newest = (SELECT max(round) FROM bank_snapshots)")
        count = connection.sql("SELECT count(*) FROM bank_at(getvariable('newest'))").fetchall()[0][0]
        number = connection.sql("SELECT getvariable('newest')").fetchall()[0][0]
        seen = by_sql(connection, number)
        entries = connection.sql(f"SELECT entries FROM bank_snapshots WHERE round = {number}").fetchall()
        assert entries == [(count,)]
        return seen


def by_sql(connection: Any, number: int) -> tuple[int, int]:
    table = connection.sql(f"SELECT {COLUMNS}, text FROM bank_at({number})").to_arrow_table()
    assert table["text"].null_count == 0, f"round {number}: a text is missing"
    recorded = connection.sql(f"SELECT entries, digest FROM bank_snapshots WHERE round = {number}").fetchall()
    check(number, Snapshot(number, table.drop_columns(["text"])), *recorded[0])
    joined, stray = connection.sql(STRAY.format(number=number)).fetchall()[0]
    assert stray == 0, f"{stray} of {joined} retrievals from bank {number} are not in it"
    return number, joined


WAYS = {"library": by_library, "views": by_views, "catalog": by_catalog}


def read(run_path: Path, way: str, notes: Path) -> None:
    """Read until the file `<notes>.last` is there, and once more; after each reading write to `notes` what was seen."""
    rounds, joined = [], 0
    ends = False
    while not ends:
        ends = notes.with_suffix(".last").exists()
        number, found = WAYS[way](run_path)
        rounds.append(number)
        joined += found
        seen = {
            "reads": len(rounds), "rounds": len(set(rounds)), "joined": joined, "back": rounds != sorted(rounds),
            "last": number,
        }  # fmt: skip
        notes.with_suffix(".half").write_text(json.dumps(seen))
        notes.with_suffix(".half").replace(notes)


def opened_for_writing(pid: int, below: Path) -> list[str]:
    """Files below a directory that a process has open for more than reading (Linux)."""
    found = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link)  # noqa: PTH115 - it may name what is no file
            if target.startswith(str(below)):
                flags = int(Path(f"/proc/{pid}/fdinfo/{link.name}").read_text().split("flags:")[1].split()[0], 8)
                if flags & (os.O_WRONLY | os.O_RDWR):
                    found.append(target)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return found


def enough(note: Path) -> bool:
    """Whether a reader has met rounds that were being published."""
    seen = json.loads(note.read_text()) if note.exists() else {"rounds": 0, "joined": 0}
    return seen["rounds"] > 2 and seen["joined"] > 0


@pytest.mark.parametrize(
    ("rounds", "ways"),
    [
        (25, ["library", "views", "catalog"]),
        (300, ["library", "views", "catalog"] * 2 + ["views", "catalog"]),
    ],
)
def test_readers_never_see_a_wrong_an_empty_or_a_torn_bank(tmp_path: Path, rounds: int, ways: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with writing(tmp_path, SIZE) as made:
        made.round()
        write_catalog(made.path)
        known = {path.name for path in made.path.iterdir()}
        command = [sys.executable, "-m", "tests.record.test_readers", str(made.path)]
        notes = [tmp_path / f"notes-{number}.json" for number in range(len(ways))]
        readers = [
            subprocess.Popen(
                [*command, way, str(note)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
            )
            for way, note in zip(ways, notes, strict=True)
        ]  # fmt: skip
        try:
            number = 1
            while number < rounds or not all(enough(note) for note in notes):
                assert number < MOST_ROUNDS, [note.exists() and note.read_text() for note in notes]
                number = made.round()
                for reader in readers:
                    assert reader.poll() is None, reader.communicate()[1][-2000:]
                    assert opened_for_writing(reader.pid, made.path) == []
            for note in notes:
                note.with_suffix(".last").touch()
            ended = [(reader.communicate(timeout=PATIENCE_SECONDS)[1], reader.returncode) for reader in readers]
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
        assert {path.name for path in made.path.iterdir()} == known, "no lock, no log was left"
    for way, note, (said, code) in zip(ways, notes, ended, strict=True):
        assert code == 0, f"{way}: {said[-3000:]}"
        seen = json.loads(note.read_text())
        assert enough(note) and seen["last"] == number and not seen["back"], (way, seen)
        print(way, seen)  # how much was read: `pytest -s` shows it


if __name__ == "__main__":
    read(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
