"""Commands that read a run: status, sql, catalog, bank, and how a run is named."""

from __future__ import annotations

import csv
import errno
import io
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from crl.report.state import last_failure, running_stages
from tests.marks import sampled
from tests.unit.cli.conftest import Outcome
from tests.unit.report.builder import NEW, OLD

Crl = Callable[..., Outcome]


def test_a_run_is_named_by_path_or_by_experiment(crl: Crl, room: Path) -> None:
    assert crl("bank", "show", "room").out.replace(str(room), "room")
    assert crl("bank", "show", room).code == crl("bank", "show", "room").code == 0


def test_an_unknown_run_lists_those_that_exist(crl: Crl, room: Path) -> None:
    outcome = crl("status", "rooom")
    assert outcome.code == 2 and "'rooom'" in outcome.err and "room" in outcome.err.split("Expected")[1]


def test_without_any_run_the_first_command_is_named(crl: Crl, runs: Path) -> None:
    assert "crl train quickstart" in crl("status", "room").err


def test_a_folder_that_may_not_be_entered_is_no_run(crl: Crl, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_file, closed = Path.is_file, room.parent / "lost+found"
    closed.mkdir()

    def refused(path: Path) -> bool:
        if path.parent == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    outcome = crl("status", "rooom")
    assert outcome.code == 2 and "or one of room\n" in outcome.err, outcome


def test_status_shows_rounds_and_what_is_missing(crl: Crl, room: Path) -> None:
    outcome = crl("status", "room")
    assert outcome.code == 0
    assert "2/2 100 % [34–100]" in outcome.out and "share_malformed" in outcome.out
    assert "unfinished: round 0, warm" in outcome.out or "unfinished: round 1, plan" in outcome.out
    assert f"crl resume {room}" in outcome.out


@pytest.mark.slow
def test_sql_in_three_formats(crl: Crl, room: Path) -> None:
    query = "SELECT episode_id, success, episode_id AS x FROM episodes WHERE round = 2 ORDER BY ALL LIMIT 2"
    table = crl("sql", "room", query)
    assert "r0002-room-g0000-m000" in table.out and "2 rows" in table.out
    rows = list(csv.DictReader(io.StringIO(crl("sql", "room", query, "--format", "csv").out)))
    assert [row["success"] for row in rows] == ["True", "False"]
    lines = [json.loads(line) for line in crl("sql", "room", query, "--format", "json").out.splitlines()]
    assert [line["success"] for line in lines] == [True, False]


def test_sql_as_it_was_after_a_round(crl: Crl, room: Path) -> None:
    query = (
        "SELECT max(round) AS newest, latest_round() AS latest, (SELECT text FROM bank_at(latest_round())) FROM stages"
    )
    assert crl("sql", "room", query, "--format", "csv").out.splitlines()[1:] == [f'2,2,"{NEW}"']
    assert crl("sql", "room", query, "--round", "1", "--format", "csv").out.splitlines()[1:] == [f"1,1,{OLD}"]
    outcome = crl("sql", "room", query, "--round", "7")
    assert outcome.code == 2 and "no round 7" in outcome.err and "from 0 to 2" in outcome.err


@pytest.mark.slow
def test_csv_and_json_keep_every_digit(crl: Crl, room: Path) -> None:
    query = "SELECT 0.1234567890123::DOUBLE AS x, [1.123456789::DOUBLE] AS y"
    assert "0.1234567890123" in crl("sql", "room", query, "--format", "csv").out
    assert json.loads(crl("sql", "room", query, "--format", "json").out) == {"x": 0.1234567890123, "y": [1.123456789]}


def test_json_keeps_columns_of_one_name_and_has_no_number_that_json_lacks(crl: Crl, room: Path) -> None:
    query = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a, 'nan'::DOUBLE AS x, ['-inf'::DOUBLE, 1] AS y"
    row = json.loads(crl("sql", "room", query, "--format", "json").out, parse_constant=pytest.fail)
    assert row == {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4, "x": None, "y": [None, 1.0]}


@pytest.mark.parametrize("query", sampled(["DROP VIEW episodes", "SELECT", "COPY episodes TO 'x.csv'"], 3))
def test_sql_refuses_with_exit_code_2(crl: Crl, room: Path, query: str) -> None:
    outcome = crl("sql", "room", query)
    assert outcome.code == 2 and outcome.out == "" and outcome.err.startswith("crl: ")


def test_catalog_can_be_opened_by_any_client(crl: Crl, room: Path) -> None:
    assert crl("catalog", "room").code == 0
    with duckdb.connect(str(room / "catalog.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM lineage").fetchall() == [(3,)]


def test_bank_show_and_why(crl: Crl, room: Path) -> None:
    assert NEW in crl("bank", "show", "room").out
    assert OLD in crl("bank", "show", "room", "--round", "1").out
    assert "empty" in crl("bank", "show", "room", "--round", "0").out
    assert crl("bank", "show", "room", "--round", "7").code == 2
    assert crl("bank", "show", "room", "--family", "maze").code == 2
    tree = crl("bank", "why", "room", "e1").out
    for part in ("r0001-room-g0000-m000 (won)", "What was learned?", "extractor tiny", "guided minus free +2.00", NEW):
        assert part in tree
    assert crl("bank", "why", "room", "e9").code == 2


def test_a_long_id_is_never_broken(crl: Crl, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert "e1 " in crl("bank", "show", "room").out


def test_last_failure_is_forgotten_once_the_stage_is_committed() -> None:
    failed = {"event": "stage_failed", "round": 1, "stage": "collect", "error": {"found": "x"}}
    other = {"event": "stage_failed", "round": 1, "stage": "plan", "error": {"found": "y"}}
    assert last_failure([other, failed]) == failed
    assert last_failure([failed, {"event": "stage_committed", "round": 1, "stage": "collect"}]) is None
    assert last_failure([]) is None


def test_running_stages() -> None:
    started = {"event": "stage_started", "round": 1, "stage": "collect", "attempt": 2}
    assert running_stages([started]) == ["round 1, collect, attempt 2"]
    assert running_stages([started, {"event": "stage_failed", "round": 1, "stage": "collect"}]) == []
    beside = {"event": "stage_started", "round": 2, "stage": "plan", "attempt": 1}
    assert len(running_stages([started, beside])) == 2, "where rounds overlap"
    assert running_stages([started, beside, {"event": "stage_committed", "round": 2, "stage": "plan"}]) == [
        "round 1, collect, attempt 2"
    ]
    assert running_stages([started, {"event": "attempt_started"}]) == [], "it was killed"
