"""The record carries a format number: every reader refuses another one and says what was found, expected and to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from crl.audit.verify import require_intact, verify
from crl.cli import main
from crl.errors import OtherFormat
from crl.records import RECORD_FORMAT, ROW_TYPES, Episode, rows_of, schema_of, with_added
from crl.report.bank import entries_after
from crl.report.diff import bank_diff
from crl.report.summary import summarize
from crl.report.view_files import Tables
from crl.report.views import connect, query, write_catalog
from crl.report.why import why
from crl.run.directory import RunDirectory
from crl.run.experiment_file import EXPERIMENT
from crl.run.files import sha256_bytes
from crl.transfer import PROVENANCE
from crl.transfer.folder import read_folder, write_folder
from crl.transfer.gather import gather
from tests.unit.report.scripted import Ask, ScriptedRun, experiment

ENTRY = "an entry"
COLUMNS = {4: "86442e5363d6f7c9525ff92093afb423458fa6f9d37c3ae0d6209671503dc1ef"}
"""SHA-256 of the names and types of all columns of a format."""
READERS: dict[str, Callable[[Path], object]] = {
    "open": RunDirectory.open,
    "train": lambda path: RunDirectory.create_or_open(experiment(), path.parent),
    "verify": verify,
    "before training": require_intact,
    "status": summarize,
    "bank": entries_after,
    "diff": lambda path: bank_diff(path, 1),
    "why": lambda path: why(path, ENTRY),
    "sql": lambda path: query(path, "SELECT count(*) FROM episodes"),
    "views": connect,
    "catalog": write_catalog,
    "export": lambda path: gather(path, None),
}
NEW_TABLES = {"verdicts", "teacher_contexts", "teacher_logprobs", "behavior_logprobs"}
"""Tables that came within a format."""
COMMANDS = (
    ["status"], ["verify"], ["mend"], ["resume"], ["redo", "--from", "0001/consolidate"], ["sql", "FROM episodes"],
    ["bank", "show"], ["bank", "why", ENTRY], ["bank", "diff", "1"], ["bank", "export", "--to", "exported"], ["report"],
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with ScriptedRun(tmp_path_factory.mktemp("format")) as run:
        run.initialize()
        run.play(Ask("add", "look for the key first"))
    return run.path


def numbered(run_path: Path, line: str) -> None:
    """Write another line in place of the format's, as another version of the project would have done."""
    path = run_path / EXPERIMENT
    head, _, body = path.read_text().partition("\n")
    body = body.replace(f"format: {RECORD_FORMAT}\n", line)
    path.write_text(f"{head.rpartition(' ')[0]} {sha256_bytes(body.encode())}\n{body}")


def test_columns_do_not_change_without_a_new_format() -> None:
    """Runs of before would be called damaged, or end in a KeyError. Columns that were added (`Row.added`) may come, and
    tables of which runs of before have none."""
    rows = sorted((each for each in ROW_TYPES if each.table not in NEW_TABLES), key=lambda row_type: row_type.table)
    told = "".join(
        f"{row_type.table} {field.name} {field.type} {field.nullable}\n"
        for row_type in rows for field in schema_of(row_type) if field.name not in row_type.added
    )  # fmt: skip
    assert COLUMNS.get(RECORD_FORMAT) == sha256_bytes(told.encode()), "raise RECORD_FORMAT, or name it in `added`"


def test_a_column_that_was_added_has_its_default_in_files_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedRun(tmp_path) as run:
        run.initialize()
        run.play(Ask("add", "look for the key first"))
        run.play(Ask("return"))
    paths = sorted(run.path.glob("rounds/*/collect/episodes.parquet"))
    whole = [with_added(Episode, pq.read_table(path)) for path in paths]
    monkeypatch.setattr(Episode, "added", ("entry_ids", "stream"))
    assert rows_of(Episode, with_added(Episode, whole[1])) == rows_of(Episode, whole[1])
    old = [table.drop_columns(["entry_ids", "stream"]) for table in whole]
    assert with_added(Episode, old[1])["entry_ids"].to_pylist() == [[]] * len(old[1])
    assert [row.entry_ids for row in rows_of(Episode, old[1])] == [[]] * len(old[1])
    nothing, lists = [[None] * len(table) for table in whole], [table["entry_ids"].to_pylist() for table in whole]
    for second, expected in ((old[1], nothing[0] + nothing[1]), (whole[1], nothing[0] + lists[1])):
        for path, table in zip(paths, (old[0], second), strict=True):
            pq.write_table(table, path)
        sql = "SELECT entry_ids FROM episodes ORDER BY round, episode_id"
        assert [row[0] for row in query(run.path, sql)[1]] == expected
        write_catalog(run.path)
        with duckdb.connect(str(run.path / "catalog.duckdb"), read_only=True) as catalog:
            assert [row[0] for row in catalog.execute(sql).fetchall()] == expected
        with Tables(run.path) as tables:
            assert [row["entry_ids"] for row in tables.select(Episode, ["entry_ids", "goal"])] == expected


@pytest.fixture(params=[f"format: {RECORD_FORMAT + 1}\n", ""], ids=["another number", "no number"])
def other(request: pytest.FixtureRequest, made: Path) -> object:
    before = (made / EXPERIMENT).read_bytes()
    numbered(made, request.param)
    yield made
    (made / EXPERIMENT).write_bytes(before)


def test_the_number_is_there_before_the_first_stage(tmp_path: Path) -> None:
    run = RunDirectory.create_or_open(experiment(), tmp_path)
    assert run.rounds() == [] and f"\nformat: {RECORD_FORMAT}\n" in (run.path / EXPERIMENT).read_text()


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_reads_a_record_of_another_format(other: Path, reader: str) -> None:
    with pytest.raises(OtherFormat) as refused:
        READERS[reader](other)
    error = refused.value
    assert f"{other} has " in error.found and f"format {RECORD_FORMAT}" in (error.expected or "")
    assert error.where == str(other / EXPERIMENT) and "version of crl that made it" in (error.next_step or "")
    assert error.exit_code == 2


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_no_command_does(made: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / EXPERIMENT).read_bytes()
    numbered(made, f"format: {RECORD_FORMAT + 1}\n")
    place = 2 if command[0] == "bank" else 1
    try:
        with pytest.raises(SystemExit) as ended:
            main([*command[:place], str(made), *command[place:]])
    finally:
        (made / EXPERIMENT).write_bytes(before)
    assert ended.value.code == 2
    assert f"has format {RECORD_FORMAT + 1}" in capsys.readouterr().err


def test_what_is_damaged_is_not_taken_for_another_format(made: Path) -> None:
    before = (made / EXPERIMENT).read_bytes()
    (made / EXPERIMENT).write_bytes(before.replace(f"format: {RECORD_FORMAT}".encode(), b"format: 9"))
    (problem,) = verify(made)
    assert problem.file == EXPERIMENT and problem.mend.startswith("crl train")
    RunDirectory.create_or_open(experiment(), made.parent)
    assert (made / EXPERIMENT).read_bytes() == before


def test_an_export_of_another_format_is_refused(made: Path, tmp_path: Path) -> None:
    write_folder(gather(made, None), tmp_path / "bank", "parquet")
    assert read_folder(tmp_path / "bank").tables["entries"].num_rows == 1
    place = tmp_path / "bank" / PROVENANCE
    place.write_text(json.dumps({**json.loads(place.read_text()), "format_version": RECORD_FORMAT + 1}))
    with pytest.raises(OtherFormat, match=f"format {RECORD_FORMAT + 1}"):
        read_folder(tmp_path / "bank")
