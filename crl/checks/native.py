"""Great Expectations at work: runs a checkpoint over a table and reports what is broken. Import it only where it is
needed.

It takes seconds to import and some 10 ms per expectation, so a stage comes here for the rows that break a rule, and for
the suites that users wrote. What comes in from outside (`outside.py`) and every committed round (`crl/validation/`) is
validated here as well. Frames keep Arrow's types, so a missing number is not NaN; lists are plain objects, which more
expectations can read. `unexpected_rows_expectation` knows SQL databases only; here DuckDB answers it over the frame:
its query sees the validated table as `{batch}` and the other tables of the stage by their names.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read once, at the import

import great_expectations as gx
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider

from crl.checks.compiled import connected
from crl.checks.suites import SQL, Config, sentence_of

_BATCH = "validated_batch"
_SHOWN_ROWS = 5
_KEPT_ROWS = 200
"""Broken rows of one query that a result holds; Great Expectations keeps as many."""


@dataclass(frozen=True)
class _Stage:
    tables: Mapping[str, pa.Table]
    key: list[str]


_stage: ContextVar[_Stage] = ContextVar("_stage")


def validate(
    table: str,
    key: list[str],
    expectations: list[Config],
    tables: Mapping[str, pa.Table],
    *,
    rows: bool = True,
) -> Any:
    """The result of a checkpoint over one of a stage's tables.

    `key` are the columns that name a row. Tables have the position of each row in `row`. An expectation that raised
    is in the result as one that failed: ask :func:`exception_of`. Without `rows` the result says which expectations
    hold, and not which rows break the others; that takes two thirds of the time. Nothing of it stays in memory.
    """
    detail = {"result_format": "COMPLETE", "unexpected_index_column_names": ["row", *key]}
    token = _stage.set(_Stage(tables, key))
    try:
        with _quiet():
            context = _context()
            source = context.data_sources.add_pandas("rows")
            data = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe(table)
            suite = context.suites.add(gx.ExpectationSuite(name=table, expectations=expectations))
            definition = gx.ValidationDefinition(name=table, data=data, suite=suite)
            checkpoint = gx.Checkpoint(
                name=table,
                validation_definitions=[context.validation_definitions.add(definition)],
                result_format=detail if rows else "BOOLEAN_ONLY",
            )
            frame = tables[table].to_pandas(types_mapper=_pandas_type)
            done = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
            (result,) = done.run_results.values()
            return result
    finally:
        _stage.reset(token)


def _pandas_type(kind: pa.DataType) -> pd.ArrowDtype | None:
    return None if pa.types.is_nested(kind) else pd.ArrowDtype(kind)


def version() -> str:
    """Of Great Expectations."""
    return str(gx.__version__)


def failures(table: str, key: list[str], results: Iterable[Any], rows: pa.Table) -> list[str]:
    """A sentence for each expectation that failed: rule, columns, how many rows, position and id of the first ones."""
    return [_sentence(table, key, each, rows) for each in results if not each.success]


def _sentence(table: str, key: list[str], result: Any, rows: pa.Table) -> str:
    config = result.expectation_config.to_json_dict()
    rule = f"table {table}: '{sentence_of(config)}'{_columns(config, rows)}"
    error = exception_of(result.exception_info)
    if error is not None:
        return f"{rule} could not be checked: {error}"
    found = result.result
    if config["type"] == SQL:
        count, listed = found["observed_value"], found["details"]["unexpected_rows"]
    elif "unexpected_index_list" in found:
        count, listed = found["unexpected_count"], found["unexpected_index_list"]
    else:
        return f"{rule} does not hold: found {found.get('observed_value')}"
    listed = sorted(listed, key=lambda each: each.get("row", 0))[:_SHOWN_ROWS]
    shown = "; ".join(_row(each, key, rows) for each in listed)
    more = "; …" if count > _SHOWN_ROWS else ""
    return f"{rule} is broken in {count} row{'s' if count > 1 else ''}: {shown}{more}"


def _row(found: Mapping[str, Any], key: list[str], rows: pa.Table) -> str:
    """`row 3 (id)`; what a user's query selected where that is not the position of the row."""
    if "row" not in found:
        return ", ".join(f"{name} {value}" for name, value in found.items())
    identity = ", ".join(str(rows.column(name)[int(found["row"])].as_py()) for name in key)
    return f"row {found['row']} ({identity})"


def _columns(config: Config, rows: pa.Table) -> str:
    """The columns that a query is about; other expectations name theirs."""
    if config["type"] != SQL:
        return ""
    query = config["kwargs"]["unexpected_rows_query"]
    words = set("".join(each if each.isalnum() or each == "_" else " " for each in query).split())
    named = [name for name in rows.column_names if name in words and name != "row"]
    return f" (column{'s' if len(named) > 1 else ''} {', '.join(named)})" if named else ""


def exception_of(info: Mapping[str, Any]) -> str | None:
    """The message of an expectation that raised: flat, or one level down by metric."""
    for part in [info, *info.values()]:
        if isinstance(part, Mapping) and part.get("raised_exception"):
            return str(part.get("exception_message") or part.get("exception_traceback"))
    return None


class _QueryMetric(TableMetricProvider):
    domain_keys = ("batch_id", "row_condition", "condition_parser")
    value_keys = ("unexpected_rows_query",)


class _UnexpectedRows(_QueryMetric):
    metric_name = "unexpected_rows_query.table"

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(cls, **asked: Any) -> list[dict[str, Any]]:
        with _answer(**asked) as relation:
            found = relation.limit(_KEPT_ROWS).to_arrow_table()
            named = [name for name in found.column_names if name in ("row", *_stage.get().key)]
            rows: list[dict[str, Any]] = (found.select(named) if named else found).to_pylist()
            return rows


class _UnexpectedRowCount(_QueryMetric):
    metric_name = "unexpected_rows_query.row_count"

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(cls, **asked: Any) -> int:
        with _answer(**asked) as relation:
            return len(relation)


@contextmanager
def _answer(
    execution_engine: PandasExecutionEngine, metric_domain_kwargs: Any, metric_value_kwargs: Any, **_: Any
) -> Iterator[Any]:
    """What DuckDB selects by an expectation's query from the batch of an engine and the tables of the stage."""
    frame, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE)
    batch = pa.Table.from_pandas(frame, preserve_index=False)
    with connected({**_stage.get().tables, _BATCH: batch}) as connection:
        yield connection.sql(metric_value_kwargs["unexpected_rows_query"].format(batch=_BATCH))


def _context() -> Any:
    """A new context in memory: it holds whatever it validated, and goes with it."""
    for noisy in ("great_expectations", "great_expectations.data_context"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    # Without a temporary directory for a documentation site, which nothing would remove.
    stores = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
    context = gx.get_context(project_config=DataContextConfig(store_backend_defaults=stores, analytics_enabled=False))
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
