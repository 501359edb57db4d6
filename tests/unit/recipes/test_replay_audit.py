"""Events that do not explain a bank are named, though every file is the one that was committed."""

from __future__ import annotations

import dataclasses

import pytest

from crl.audit.audit import problems_of, replay_problems
from crl.records import BankEvent, Operation, rows_of, table_of
from crl.run.directory import RunDirectory
from tests.unit.report.scripted import Ask, ScriptedRun


class Told:
    """A run whose rows of one type in one stage say something else."""

    def __init__(self, run, round_number, stage, row_type, change) -> None:
        self._run, self._place, self._change = run, (round_number, stage, row_type), change

    def __getattr__(self, name):
        return getattr(self._run, name)

    def read(self, round_number, stage, row_type):
        table = self._run.read(round_number, stage, row_type)
        if (round_number, stage, row_type) != self._place:
            return table
        return table_of(row_type, self._change(rows_of(row_type, table)))


@pytest.fixture
def run(tmp_path):
    with ScriptedRun(tmp_path) as scripted:
        scripted.initialize()
        first, second = scripted.play(Ask("add", "go left"), Ask("add", "go right"))
        scripted.play(Ask("update", "go far left", entry=first), guided=[(first, True)])
        scripted.play(merges=[Ask("merge", "go anywhere", parents=(first, second))])
        yield scripted


def test_the_events_of_a_run_explain_its_banks(run):
    assert replay_problems(run.run, run.recipe) == []
    assert problems_of(run.run, run.recipe) == []


@pytest.mark.parametrize(
    ("stage", "row_type", "change", "found"),
    [
        ("consolidate", BankEvent, lambda rows: rows[1:], "one of digest"),
        ("distill", Operation, lambda rows: [], "no operation"),
        ("distill", Operation, lambda rows: [dataclasses.replace(row, episode_ids=["x"]) for row in rows], "one of"),
        ("consolidate", BankEvent, lambda rows: [dataclasses.replace(rows[0], entry_id="x")], "cannot be replayed"),
    ],
)
def test_the_first_round_that_they_do_not_explain_is_named(run, stage, row_type, change, found):
    (problem,) = replay_problems(Told(run.run, 2, stage, row_type, change), run.recipe)
    assert (problem.file, problem.round) == ("rounds/0002/consolidate/bank_events.parquet", 2)
    assert found in problem.found and "--from 0002/consolidate" in problem.mend


def test_every_table_is_read_once(run, monkeypatch):
    places, read = [], RunDirectory.read
    monkeypatch.setattr(RunDirectory, "read", lambda self, *place: places.append(place) or read(self, *place))
    assert replay_problems(run.run, run.recipe) == []
    assert len(places) == len(set(places)) and (3, "consolidate", BankEvent) in places


def test_a_file_that_cannot_be_read_is_left_to_those_who_name_files(run):
    (run.path / "rounds/0002/consolidate/bank_events.parquet").write_bytes(b"nothing")
    assert replay_problems(run.run, run.recipe) == []
