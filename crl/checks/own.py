"""A user's own suites, checked before work starts: expectation types, their arguments, columns, and SQL.

Great Expectations is imported for them only. Queries run on empty tables, so a wrong name shows at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from crl.checks.suites import SQL, Config, key_of
from crl.errors import BadInput
from crl.records import ROW_TYPES, schema_of

_WHERE = "runtime.expectations"


def check_own_suites(own: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise BadInput for the first expectation that no stage could be held against."""
    if not own:
        return
    from crl.checks.stage import numbered

    empty = numbered({row_type: schema_of(row_type).empty_table() for row_type in ROW_TYPES})
    for table, suite in own.items():
        if table not in empty:
            raise _refused(f"{table!r} takes no suite of your own", table, empty, _WHERE)
        listed = suite.get("expectations")
        if not isinstance(listed, list):
            raise BadInput(
                f"the suite of {table} has no expectations",
                expected='{"expectations": [{"type": "expect_…", "kwargs": {…}}, …]}',
                where=f"{_WHERE}.{table}",
            )
        for place, config in enumerate(listed):
            _check(table, config, empty, f"{_WHERE}.{table}, expectation {place + 1}")


def _check(table: str, config: Config, empty: Mapping[str, pa.Table], where: str) -> None:
    import great_expectations as gx
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    from crl.checks.native import failures, validate

    kind, kwargs = config.get("type", ""), config.get("kwargs", {})
    known = list_registered_expectation_implementations()
    if kind not in known:
        raise _refused(f"{kind!r} is no expectation type of Great Expectations", kind, known, where)
    columns = empty[table].column_names
    for column in _columns(kwargs):
        if column not in columns:
            raise _refused(
                f"{table} has no column {column!r}", column, [each for each in columns if each != "row"], where
            )
    try:
        gx.ExpectationSuite(name=table, expectations=[config])
    except Exception as error:
        message = str(error).split("\nTraceback")[0]
        raise BadInput(f"{kind} cannot be read: {message}", expected="arguments that it takes", where=where) from None
    if kind == SQL:
        result = validate(table, key_of(table), [config], empty)
        for failure in failures(table, key_of(table), result.results, empty[table]):
            raise BadInput(
                failure,
                expected=f"a query for the rows of {{batch}} that break the rule; columns: {', '.join(columns)}",
                where=where,
                next_step="correct the SQL (DuckDB's); other tables of the stage go by their names",
            )


def _columns(kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Columns that arguments name."""
    for name, value in kwargs.items():
        if name in ("column", "column_A", "column_B") and isinstance(value, str):
            yield value
        elif name == "column_list" and isinstance(value, list):
            yield from map(str, value)


def _refused(found: str, name: str, known: Any, where: str) -> BadInput:
    close = difflib.get_close_matches(name, known, n=1)
    return BadInput(
        found + (f"; did you mean {close[0]!r}?" if close else ""),
        expected=f"one of {', '.join(sorted(known))}",
        where=where,
        next_step="correct the file in expectations/ beside the experiment; docs/checks.md shows one",
    )
