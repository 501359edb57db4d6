"""Runs the suites: DuckDB evaluates the rules on every row, Great Expectations validates the frames that result.

A frame has a row for each record, and its column `broken_rule` holds the first rule that the record breaks: that it is
null is what a table's suite expects. An expectation costs 5 ms whatever it looks at, so all rules of a table share one:
with one a rule, checking a round of miniatures took longer than playing it. The first pass asks for a verdict only; a
table that fails is validated again in full to name rows. Rules that could not be evaluated, or an expectation that
errored, count as broken: they never pass silently. Great Expectations, pandas and DuckDB are imported at the first
check, not before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crl.checks.cross import CROSS_RULES
from crl.checks.rules import SUITES, WINDOWS
from crl.checks.suite import Suite, unique
from crl.checks.summaries import summarise
from crl.errors import DataCheckFailed
from crl.records import ROW_TYPES, Row

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

_SHOWN_ROWS = 5
_CROSS = "between tables"


@dataclass(frozen=True)
class SuiteResult:
    """What one suite found."""

    table: str
    rows: int
    expectations: int
    """Rules checked."""
    success: bool
    seconds: float
    failures: tuple[str, ...] = ()
    """A sentence for each broken rule: how many rows, and the first of them."""

    def record(self) -> dict[str, Any]:
        """As plain data without the time: equal runs have equal results."""
        return {name: value for name, value in asdict(self).items() if name != "seconds"}


def suite_names() -> tuple[str, ...]:
    """Tables that have a suite."""
    return tuple(row_type.table for row_type in ROW_TYPES if row_type in SUITES)


def check_tables(tables: Mapping[type[Row], pa.Table], *, where: str) -> list[SuiteResult]:
    """Check the tables that one stage wrote, each by its suite, then the rules between them.

    Raises DataCheckFailed if any rule is broken, or could not be checked; it names table, rule, number of rows, and the
    position and id of the first ones.
    """
    if not tables:
        return []
    with _quiet(), _connection() as connection:
        for row_type, table in tables.items():
            numbered = summarise(table).append_column("row", pa.array(range(table.num_rows), pa.int64()))
            connection.register(row_type.table, numbered)
        results = [_check_table(connection, row_type, table.num_rows) for row_type, table in tables.items()]
        results += _check_between(connection, {row_type.table: table.num_rows for row_type, table in tables.items()})
    failures = [failure for result in results for failure in result.failures]
    if failures:
        raise DataCheckFailed(
            "\n".join(failures),
            expected="every rule of the record types to hold (crl/checks)",
            where=where,
            next_step="nothing was committed; correct what made these rows, then `crl resume`",
        )
    return results


def _check_table(connection: duckdb.DuckDBPyConnection, row_type: type[Row], rows: int) -> SuiteResult:
    started = time.perf_counter()
    suite = SUITES[row_type]
    failures = _failures(connection, row_type.table, _frame_query(row_type, suite))
    seconds = time.perf_counter() - started
    return SuiteResult(row_type.table, rows, len(_predicates(suite)), not failures, seconds, tuple(failures))


def _check_between(connection: duckdb.DuckDBPyConnection, rows: Mapping[str, int]) -> list[SuiteResult]:
    started = time.perf_counter()
    rules = [rule for rule in CROSS_RULES if set(rule.tables) <= rows.keys()]
    if not rules:
        return []
    query = " UNION ALL ".join(
        f'SELECT {_literal(rule.tables[0])} AS "table", {_literal(rule.rule)} AS broken_rule, row, id '
        f"FROM ({rule.violations})"
        for rule in rules
    )
    failures = _failures(connection, _CROSS, f'{query} ORDER BY "table", broken_rule, row')
    seconds = time.perf_counter() - started
    total = sum(rows[name] for name in sorted({name for rule in rules for name in rule.tables}))
    return [SuiteResult(_CROSS, total, len(rules), not failures, seconds, tuple(failures))]


def _predicates(suite: Suite) -> dict[str, str]:
    """Every rule of a suite as a sentence and the SQL predicate that a row breaks where it is false or null."""
    found = {
        f"{' and '.join(suite.key)} {'is' if len(suite.key) == 1 else 'are'} unique": unique(*map(_quoted, suite.key))
    }
    for column, allowed in suite.sets.items():
        listed = ", ".join(map(_literal, allowed))
        found[f"{column} is one of {', '.join(allowed)}"] = f"{_quoted(column)} IN ({listed}) OR {_null(column)}"
    for column, (low, high) in suite.ranges.items():
        rule = f"{column} is " + (f"at least {low}" if high is None else f"between {low} and {high}")
        bounds = [
            f"{_quoted(column)} {sign} {bound}" for sign, bound in ((">=", low), ("<=", high)) if bound is not None
        ]
        found[rule] = f"({' AND '.join(bounds)}) OR {_null(column)}"
    return {**found, **suite.rows}


def _frame_query(row_type: type[Row], suite: Suite) -> str:
    """One row a record: its position, its id, the first rule it breaks."""
    cases = " ".join(f"WHEN ({test}) IS NOT TRUE THEN {_literal(rule)}" for rule, test in _predicates(suite).items())
    identity = " || ', ' || ".join(f"{_quoted(name)}::VARCHAR" for name in suite.key)
    return (
        f"SELECT row, {identity} AS id, CASE {cases} END AS broken_rule "
        f"FROM {row_type.table} {WINDOWS.get(row_type, '')} ORDER BY row"
    )


def _failures(connection: duckdb.DuckDBPyConnection, name: str, query: str) -> list[str]:
    """Evaluate rules and validate the frame that results; a sentence for each that is broken or could not be seen."""
    import duckdb

    try:
        frame = connection.sql(query).df()
    except duckdb.Error as error:
        return [f"{name}: the rules could not be checked: {error}"]
    return _validate(name, frame)


def _validate(name: str, frame: pd.DataFrame) -> list[str]:
    """Validate a frame by the suite of that name; a sentence for each rule that does not hold."""
    expectation_suite, batch_definition = _built(name)
    # Each batch is hashed, ids too; the verdict needs none.
    verdicts = batch_definition.get_batch({"dataframe": frame.drop(columns="id")})
    if verdicts.validate(expectation_suite, result_format={"result_format": "BOOLEAN_ONLY"}).success:
        return []
    full = batch_definition.get_batch({"dataframe": frame}).validate(
        expectation_suite,
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["row", "id"]},
    )
    failures: list[str] = []
    for result in full.results:
        if not result.success:
            failures += _sentences(name, frame, result)
    # The first pass decides: a table it refused never passes, even if the second could not say why.
    return failures or [f"{name}: an expectation failed and gave no reason"]


def _sentences(name: str, frame: pd.DataFrame, result: Any) -> Iterator[str]:
    error = _exception_of(result.exception_info)
    if error is not None:
        yield f"{name}: the rules could not be checked: {error}"
        return
    broken = frame[frame["broken_rule"].notna()]
    # Violations between tables come with the table whose rows are named.
    tables = broken["table"] if "table" in frame.columns else broken["row"].map(lambda row: name)
    for (table, rule), group in broken.groupby([tables, broken["broken_rule"]], sort=False):
        yield _sentence(str(table), str(rule), group)


def _sentence(table: str, rule: str, rows: pd.DataFrame) -> str:
    first = rows.sort_values("row").head(_SHOWN_ROWS)
    shown = "; ".join(f"row {row} ({identity})" for row, identity in zip(first["row"], first["id"], strict=True))
    more = "; …" if len(rows) > _SHOWN_ROWS else ""
    return f"table {table}: '{rule}' is broken in {len(rows)} row{'s' if len(rows) > 1 else ''}: {shown}{more}"


def _exception_of(info: Mapping[str, Any]) -> str | None:
    """The message of an expectation that errored: flat, or one level down by metric."""
    for part in [info, *info.values()]:
        if isinstance(part, Mapping) and part.get("raised_exception"):
            return str(part.get("exception_message") or part.get("exception_traceback"))
    return None


@cache
def _built(name: str) -> tuple[Any, Any]:
    """(expectation suite, batch definition) of a table, built once a process."""
    import great_expectations as gx

    expectations: Any = gx.expectations
    nothing_broken = expectations.ExpectColumnValuesToBeNull(column="broken_rule")
    asset = _source().add_dataframe_asset(name)
    definition = asset.add_batch_definition_whole_dataframe(name)
    return gx.ExpectationSuite(name=name, expectations=[nothing_broken]), definition


@cache
def _source() -> Any:
    """The one data source of the one ephemeral context of this process."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    for noisy in ("great_expectations", "great_expectations.data_context"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context.data_sources.add_pandas("rows")


@contextlib.contextmanager
def _connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of its own to this process's empty database; what is registered in it goes with it."""
    with _database().cursor() as connection:
        yield connection


@cache
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb

    # Opened once: that takes 18 ms. One thread: a stage's tables are small, and the cores belong to the models.
    return duckdb.connect(config={"threads": 1})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _null(column: str) -> str:
    """A rule about the values of a column says nothing of a missing one."""
    return f"{_quoted(column)} IS NULL"


def _quoted(column: str) -> str:
    return f'"{column}"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
