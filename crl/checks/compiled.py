"""Whether every expectation of the project's suites holds, in a fraction of the time that Great Expectations takes.

What is compiled is the expectation's own JSON, so there is one definition of a rule: those that are queries become one
DuckDB query per table, the others calls of Arrow's functions, which take microseconds a rule for a table of a hundred
rows. A property test holds this verdict against Great Expectations' own on good and broken rows of every row type.
Nothing here says which rows are broken: `native.py` does, where something is.
"""

from __future__ import annotations

import atexit
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from crl.checks.suites import NOT_NULL, SQL, Config

if TYPE_CHECKING:
    import duckdb

_ROWS_BREAKING = re.compile(r"SELECT \* FROM \{batch\} (?:WHERE|QUALIFY) \((.*)\) IS NOT TRUE", re.DOTALL)
"""What `suites.rows_breaking` writes: its predicate is evaluated in the one scan that all such rules share."""


def broken(
    connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table, rules: list[Config]
) -> list[tuple[Config, int]]:
    """The expectations of a registered table that do not hold, each with the number of rows that break it.

    Raises `duckdb.Error`, and as :func:`broken_rows`.
    """
    queries = [each for each in rules if each["type"] == SQL]
    counted = [(each, broken_rows(table, each)) for each in rules if each["type"] != SQL]
    if queries:
        counts = connection.execute(_query(name, tuple(map(_Statement.of, queries)))).fetchone() or ()
        counted += zip(queries, counts, strict=True)
    return [(each, count) for each, count in counted if count]


_CHECKS_OF_A_DATABASE = 100
"""A query leaves up to 70 kB behind in DuckDB until its database is closed, and opening one takes 18 ms."""
_checks = itertools.count()


@contextmanager
def connected(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees the tables by their names, and nothing else; what is registered in it goes with it."""
    with _database(next(_checks) // _CHECKS_OF_A_DATABASE).cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        yield connection


class _Statement(str):
    """SQL of one expectation: a predicate that holds in sound rows, or a query for those that are broken."""

    is_query: bool

    @classmethod
    def of(cls, config: Config) -> _Statement:
        query = config["kwargs"]["unexpected_rows_query"]
        predicate = _ROWS_BREAKING.fullmatch(query)
        made = cls(_unescaped(predicate[1]) if predicate else query)
        made.is_query = predicate is None
        return made


def _query(table: str, statements: tuple[_Statement, ...]) -> str:
    """One row: the number of broken rows by expectation. Predicates share one scan; windows are allowed in them."""
    holds = ", ".join(f"({each}) AS h{place}" for place, each in enumerate(statements) if not each.is_query)
    counts = ", ".join(
        f"(SELECT count(*) FROM ({each.format(batch=table)}))"
        if each.is_query
        else f"count(*) FILTER (WHERE h{place} IS NOT TRUE)"
        for place, each in enumerate(statements)
    )
    return f"SELECT {counts} FROM (SELECT {holds} FROM {table})" if holds else f"SELECT {counts}"


@lru_cache(maxsize=1)
def _database(number: int) -> duckdb.DuckDBPyConnection:
    """The database in memory that checks use now; that of a lower number is closed."""
    import duckdb

    # One thread: a stage's tables are small, and the cores belong to the models.
    return duckdb.connect(config={"threads": 1})


atexit.register(_database.cache_clear)  # else DuckDB prints a hundred lines about it when the process ends


def _unescaped(sql: str) -> str:
    return sql.replace("{{", "{").replace("}}", "}")


def broken_rows(table: pa.Table, rule: Config) -> int:
    """How many rows of a table break an expectation about columns; a missing value breaks none about values.

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
