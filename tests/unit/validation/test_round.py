"""A committed round, validated: by every rule, from the rows that are on the disk now, against the compiled pass."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crl.audit.verify import verify
from crl.checks.suites import SQL, applying, suite_of
from crl.config.load import load_experiment
from crl.records import Metric, RetrievalCount
from crl.report.data_docs import INDEX
from crl.report.markdown import validation_markdown
from crl.report.page import write_report
from crl.report.round_tables import remarks
from crl.report.summary import History
from crl.report.views import query, write_catalog
from crl.rounds.context import StageContext
from crl.rounds.stage import Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.validations import VALIDATIONS, Verdict, load_verdict
from crl.validation import round as validation
from crl.validation.round import validate_round
from tests.unit.report.test_data_docs import TINY, attempt

TABLES = ("metrics", "retrieval_counts")
RULES = {table: applying(suite_of(table)["expectations"], frozenset(TABLES)) for table in TABLES}


COUNT = next(each for each in RULES["retrieval_counts"] if "min_value" in each["kwargs"] and "count" in str(each))
"""`count is at least 0`"""


def plan(ctx: StageContext) -> None:
    ctx.write(Metric, [Metric(round=ctx.round, stage="plan", name="metric", value=0.5, alarm=None)])
    ctx.write(RetrievalCount, [RetrievalCount(entry_id=name, count=3, last_round=1) for name in ("e1", "e2")])


RECIPE = Recipe(
    name="one", preparation=(), stages=(Stage("collect", run=plan, writes=(Metric, RetrievalCount)),), initial={}
)
"""Two small tables: every rule takes Great Expectations some 10 ms."""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Round 2 is committed."""
    made = RunDirectory.create_or_open(load_experiment(TINY), tmp_path)
    attempt(made, 2, RECIPE)
    return made


def table_of(verdict: Verdict, table: str) -> Any:
    return next(each for each in verdict.tables if each.table == table)


def damage(run: RunDirectory, table: str, column: str, value: Any) -> None:
    """Write a value into a column of the first row, behind the record's back."""
    path = run.stage_path(2, "collect") / f"{table}.parquet"
    rows = pq.ParquetFile(path).read()
    kind = rows.schema.field(column)
    changed = pa.array([value, *rows[column].to_pylist()[1:]], kind.type)
    pq.write_table(rows.set_column(rows.column_names.index(column), kind, changed), path)


def test_every_rule_is_evaluated_and_the_verdict_is_everywhere(run: RunDirectory) -> None:
    verdict = validate_round(run.path, 2)
    assert verdict.outcome == "passed" and verdict.alarms == [] and verdict == load_verdict(run.path, 2)
    assert {each.table: each.rules for each in verdict.tables} == {table: len(rules) for table, rules in RULES.items()}
    queries = [rule for rules in RULES.values() for rule in rules if rule["type"] == SQL]
    assert verdict.queries == len(queries) and verdict.only_compiled == 0 and verdict.megabytes > 50
    # The catalog, whoever opens it.
    sql = "SELECT round, table_name, rules, queries, only_compiled, passed, alarms FROM validations ORDER BY table_name"
    listed = [(2, each.table, each.rules, each.queries, 0, True, []) for each in verdict.tables]
    assert query(run.path, sql)[1] == sorted(listed)
    import duckdb

    with duckdb.connect(str(write_catalog(run.path)), read_only=True) as catalog:
        assert catalog.execute(sql).fetchall() == sorted(listed)
    # The report, the terminal, the artifact.
    assert verdict.summary() in write_report(run.path).read_text(encoding="utf-8")
    assert f"round 2 {verdict.summary()}" in remarks(History(run.path).summaries())
    text = validation_markdown("tiny", verdict, "http://127.0.0.1:1/tiny/cache/data_docs/index.html")
    assert f"| collect | retrieval counts | 2 | {len(RULES['retrieval_counts'])} |" in text
    assert "](http://127.0.0.1:1/tiny/cache/data_docs/index.html)" in text
    assert (run.path / INDEX).read_text(encoding="utf-8").count("passed</a>") == 2


def test_a_column_damaged_after_the_commit_is_found_by_it_and_by_verify(run: RunDirectory) -> None:
    history = History(run.path)
    assert history.summaries()[0].validation is None
    damage(run, "retrieval_counts", "count", -3)
    verdict = validate_round(run.path, 2)
    damaged = table_of(verdict, "retrieval_counts")
    assert verdict.outcome == "failed" and not damaged.passed and table_of(verdict, "metrics").passed
    assert any("count is at least 0' is broken in 1 row: row 0 (e1)" in each for each in damaged.broken)
    assert "retrieval_counts.parquet is not the file that was committed: `crl verify` says more" in damaged.alarms
    assert "'count is at least 0' held at the commit and is broken in 1 rows now" in damaged.alarms
    assert [problem.file for problem in verify(run.path)] == ["rounds/0002/collect/retrieval_counts.parquet"]
    # What was read before knows it now.
    (summary,) = history.summaries()
    assert f"validate: {verdict.alarms[0]}" in summary.alarms
    assert (run.path / INDEX).read_text(encoding="utf-8").count("failed</a>") == 1


def test_a_table_that_cannot_be_read_is_said(run: RunDirectory) -> None:
    (run.stage_path(2, "collect") / "metrics.parquet").write_bytes(b"PAR1 no more")
    verdict = validate_round(run.path, 2)
    assert verdict.outcome == "failed" and "metrics.parquet cannot be read" in table_of(verdict, "metrics").broken[0]
    assert table_of(verdict, "retrieval_counts").passed, "the others are validated all the same"


Plant = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def without_a_rule(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for rule in rules if rule["kwargs"].get("column") != "count"]


def with_a_looser_bound(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    loose = copy.deepcopy(rules)
    for rule in loose:
        if rule["kwargs"].get("column") == "count" and "min_value" in rule["kwargs"]:
            rule["kwargs"]["min_value"] = -1000
    return loose


@pytest.mark.parametrize("plant", [without_a_rule, with_a_looser_bound])
def test_a_suite_weaker_than_the_compiled_rules_raises_the_alarm(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    sound = validation.native_rules
    monkeypatch.setattr(validation, "native_rules", lambda table, written: plant(sound(table, written)))
    alarm = "Great Expectations was not asked for 'count is at least 0': its suite is weaker than"
    verdict = validate_round(run.path, 2)
    assert verdict.outcome == "passed" and any(alarm in each for each in verdict.alarms), "on sound rows too"
    assert all(each.table == "retrieval_counts" for each in verdict.tables if each.alarms)


def test_the_two_disagree_in_either_direction(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = validation.broken

    def planted(connection: Any, name: str, *more: Any) -> list[Any]:
        return [(COUNT, 3)] if name == "retrieval_counts" else compiled(connection, name, *more)

    monkeypatch.setattr(validation, "broken", planted)
    verdict = validate_round(run.path, 2)
    (alarm,) = verdict.alarms
    assert "Great Expectations passes" in alarm and "which the compiled pass finds broken in 3 rows" in alarm
    monkeypatch.setattr(validation, "broken", lambda *table: [])
    damage(run, "retrieval_counts", "count", -3)
    verdict = validate_round(run.path, 2)
    told = "Great Expectations finds 'count is at least 0' broken, which the compiled pass lets pass"
    assert any(told in each for each in verdict.alarms)


@pytest.mark.slow
def test_what_it_cannot_evaluate_is_no_verdict(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    from crl.checks import native

    def fail(**asked: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(native, "_answer", fail)
    verdict = validate_round(run.path, 2)
    queries = sum(rule["type"] == SQL for rules in RULES.values() for rule in rules)
    assert verdict.outcome == "passed" and verdict.alarms == []
    assert verdict.only_compiled == queries and verdict.queries == 0
    assert verdict.rules == sum(map(len, RULES.values())) - queries
    damage(run, "retrieval_counts", "last_round", -1)  # a rule in SQL
    verdict = validate_round(run.path, 2)
    assert any("held at the commit and is broken in 1 rows now" in each for each in verdict.alarms)


@pytest.mark.slow
def test_a_rule_of_ones_own_is_evaluated_too(run: RunDirectory) -> None:
    short = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "count", "max_value": 1}}
    verdict = validate_round(run.path, 2, {"retrieval_counts": {"expectations": [short]}})
    (alarm,) = verdict.alarms
    assert "a rule of your own, does not hold in rows that were committed" in alarm
    assert table_of(verdict, "retrieval_counts").rules == len(RULES["retrieval_counts"]) + 1


@pytest.mark.slow
def test_a_verdict_of_stages_that_were_redone_is_none(run: RunDirectory) -> None:
    verdict = validate_round(run.path, 2)
    path = run.path / VALIDATIONS / "0002.json"
    content = json.loads(path.read_text())
    content["stages"]["collect"] = "0" * 64
    path.write_text(json.dumps(content))
    assert load_verdict(run.path, 2) is None and query(run.path, "FROM validations")[1] == []
    assert History(run.path).summaries()[0].validation is None
    path.write_text("no json")
    assert load_verdict(run.path, 2) is None and query(run.path, "FROM validations")[1] == []
    assert validate_round(run.path, 2).tables == verdict.tables, "made again"


@pytest.mark.slow
def test_the_docs_keep_the_pages_of_earlier_rounds(run: RunDirectory) -> None:
    validate_round(run.path, 2)
    attempt(run, 4, RECIPE)
    validate_round(run.path, 4)
    text = (run.path / INDEX).read_text(encoding="utf-8")
    assert text.index("rounds/0004/collect") < text.index("rounds/0002/collect") and text.count("passed</a>") == 4
    assert (run.path / INDEX).with_name("validations").joinpath("rounds/0002/collect/metrics.html").is_file()


def test_a_column_of_lists_can_be_asked_about(tmp_path: Path) -> None:
    """Read plainly: what knows lists works, and what does not raises, which is no verdict."""
    from crl.checks.native import exception_of, validate

    table = pa.table({"row": [0, 1, 2], "id": ["a", "b", "c"], "names": [["x"], [], ["x"]]})
    kinds = ("to_be_unique", "to_not_be_null")
    rules: list[Any] = [{"type": f"expect_column_values_{kind}", "kwargs": {"column": "names"}} for kind in kinds]
    rules.append({"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": ["id", "names"]}})
    results = validate("some", ["id"], rules, {"some": table}).results
    by_type = {each.expectation_config.type: each for each in results}
    assert not by_type["expect_column_values_to_be_unique"].success
    assert by_type["expect_column_values_to_be_unique"].result["unexpected_count"] == 2
    assert by_type["expect_column_values_to_not_be_null"].success
    assert exception_of(by_type["expect_compound_columns_to_be_unique"].exception_info) is not None
