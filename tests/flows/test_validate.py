"""A run of three rounds under Prefect: Great Expectations validates every table of every round, for all to see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crl.audit.verify import verify
from crl.checks.suites import applying, suite_of
from crl.report.views import query, write_catalog
from crl.run.directory import RunDirectory
from crl.run.validations import load_verdict
from flows.train import resume, train
from tasks.artifacts import PAGES, VALIDATION, artifact_key
from tests.flows.test_flows import artifacts, task_runs
from tests.tiny_run import crl_here, experiment
from tests.unit.engine.harness import make_experiment
from tests.unit.validation.child import ORDERS

pytestmark = pytest.mark.slow
ROUNDS = 3
NAME = "validated"
"""Not that of the run whose artifacts other tests count."""


def test_three_rounds_and_then_a_damaged_column(
    prefect_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(tmp_path))
    monkeypatch.setenv(PAGES, "http://127.0.0.1:4201")
    state: Any = train(experiment(name=NAME, runtime__validate_every=1), rounds=ROUNDS, return_state=True)
    assert state.is_completed(), state.message
    run = RunDirectory.open(tmp_path / NAME)
    rows = {}
    for number in range(ROUNDS + 1):
        verdict = load_verdict(run.path, number)
        assert verdict is not None and verdict.outcome == "passed" and verdict.alarms == []
        # Every table of every stage by every rule: those of the project that apply, and no other.
        wanted = {}
        for stage in run.complete_stages(number):
            tables = [name[:-8] for name in run.manifest(number, stage).digested.files if name.endswith(".parquet")]
            for table in tables:
                wanted[stage, table] = len(applying(suite_of(table)["expectations"], frozenset(tables)))
        assert {(each.stage, each.table): each.rules + each.only_compiled for each in verdict.tables} == wanted
        assert verdict.rules > 5 * verdict.only_compiled
        rows |= {(number, *place): count for place, count in wanted.items()}
    # The catalog.
    sql = "SELECT round, stage, table_name, rules + only_compiled AS rules FROM validations"
    assert {tuple(row[:3]): row[3] for row in query(run.path, sql)[1]} == rows
    write_catalog(run.path)
    # The UI: a task of the flow run for each round, and an artifact with the link.
    tasks = task_runs(state.state_details.flow_run_id)
    shown = {name: run.state.name for name, run in tasks.items() if name.startswith("validate")}
    assert shown == {f"validate round {number}": "Passed" for number in range(ROUNDS + 1)}
    newest = max(artifacts(artifact_key(NAME, VALIDATION)), key=lambda each: each.created)
    assert newest.description == f"Round {ROUNDS}" and verdict.summary().split(":")[0] in newest.data
    assert "](http://127.0.0.1:4201/validated/cache/data_docs/index.html)" in newest.data
    # The report, with both counts; the last validation is on it.
    page = (run.path / "report.html").read_text(encoding="utf-8")
    for number in range(ROUNDS + 1):
        told = getattr(load_verdict(run.path, number), "summary", lambda: "no verdict")()
        assert re.search(rf"round {number} {re.escape(told)}", page)
    assert verify(run.path) == []

    path = run.stage_path(2, "collect") / "episodes.parquet"
    table = pq.ParquetFile(path).read()
    place = table.column_names.index("invalid_actions")
    column = pa.array([-1] * table.num_rows, table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), path)
    said = crl_here(tmp_path, "checks", "docs", NAME, "--round", "2").stdout
    assert "round 2: failed" in said and "episodes.parquet is not the file that was committed" in said
    assert f"held at the commit and is broken in {table.num_rows} rows now" in said
    assert "rounds/0002/collect/episodes.parquet" in crl_here(tmp_path, "verify", NAME, code=4).stdout
    status = crl_here(tmp_path, "status", NAME).stdout
    assert re.search(r"^round 2 failed: .*; alarm: collect, episodes: .*, and \d+ more$", status, re.MULTILINE)
    assert re.search(r"^round 3 passed: ", status, re.MULTILINE)


def test_a_validation_that_fails_is_a_failed_task_of_a_run_that_goes_on(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crl.engine.supervisor import Engine
    from crl.validation import subscriber

    module = {"module": "tests.unit.validation.child"}
    monkeypatch.setattr(subscriber, "Engine", lambda **named: Engine(**{**named, **module}))
    monkeypatch.setenv(ORDERS, json.dumps({"1": "dies"}))
    path = fake({})
    state: Any = train(make_experiment(validate_every=1), rounds=2, return_state=True)
    assert state.is_completed() and state.result() == {"run": str(path), "rounds": [0, 1, 2]}
    tasks = task_runs(state.state_details.flow_run_id)
    shown = {name: run.state.name for name, run in tasks.items() if name.startswith("validate")}
    assert shown == {"validate round 0": "Passed", "validate round 1": "Not validated", "validate round 2": "Passed"}
    assert "ended with exit code 3" in tasks["validate round 1"].state.message
    page = (path / "report.html").read_text(encoding="utf-8")
    assert "round 1 not validated: the engine process ended with exit code 3" in page
    monkeypatch.setenv(ORDERS, "{}")
    assert resume(path)["rounds"] == []
    assert getattr(load_verdict(path, 1), "outcome", None) == "passed", "made again, though nothing was left to do"
