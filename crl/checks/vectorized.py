"""Expectations about columns, counted with Arrow's functions: a table of a hundred rows takes microseconds a rule.

Only the expectation types that the project's suites use. A missing value breaks no rule about values, unless that is
what the rule is about, as in Great Expectations; a property test holds every count against it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from crl.checks.suite import NOT_NULL, Config


def broken_rows(table: pa.Table, rule: Config) -> int:
    """How many rows of a table break an expectation.

    Raises KeyError for a column that is not there, `pa.ArrowException` for one of another type, NotImplementedError for
    an expectation that no suite of the project uses.
    """
    kwargs: dict[str, Any] = rule["kwargs"]
    match rule["type"]:
        case "expect_compound_columns_to_be_unique":
            return _repeated(table.select(kwargs["column_list"]))
        case "expect_column_pair_values_a_to_be_greater_than_b":
            higher, lower = table.column(kwargs["column_A"]), table.column(kwargs["column_B"])
            holds = pc.greater_equal(higher, lower) if kwargs.get("or_equal") else pc.greater(higher, lower)
            return int(table.num_rows) - _total(holds)
    column = table.column(kwargs["column"])
    if rule["type"] == NOT_NULL:
        return int(column.null_count)
    found = column.drop_null()
    match rule["type"]:
        case "expect_column_values_to_be_unique":
            return _repeated(pa.table([found], names=["value"]))
        case "expect_column_values_to_be_in_set":
            return len(found) - _total(pc.is_in(found, pa.array(kwargs["value_set"], found.type)))
        case "expect_column_values_to_be_between":
            return _outside(found, kwargs)
        case "expect_column_value_lengths_to_be_between":
            return _outside(pc.utf8_length(found), kwargs)
        case "expect_column_values_to_match_regex":
            return len(found) - _total(pc.match_substring_regex(found, kwargs["regex"]))
        case "expect_column_values_to_not_match_regex":
            return _total(pc.match_substring_regex(found, kwargs["regex"]))
    raise NotImplementedError(f"rows that break {rule['type']} cannot be counted: write it here, or as a query")


def _outside(values: pa.ChunkedArray, bounds: dict[str, Any]) -> int:
    within = pa.chunked_array([pa.repeat(True, len(values))])
    if "min_value" in bounds:
        within = pc.and_(within, pc.greater_equal(values, bounds["min_value"]))
    if "max_value" in bounds:
        within = pc.and_(within, pc.less_equal(values, bounds["max_value"]))
    return len(values) - _total(within)


def _repeated(columns: pa.Table) -> int:
    """Rows that are there more than once; missing values are equal."""
    counts = columns.group_by(columns.column_names).aggregate([([], "count_all")]).column("count_all")
    return _total(counts.filter(pc.greater(counts, 1)))


def _total(values: pa.ChunkedArray) -> int:
    """The sum of numbers, or how many flags are set; a missing value adds nothing."""
    return int(pc.sum(values).as_py() or 0)
