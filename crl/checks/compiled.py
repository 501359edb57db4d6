"""The project's suites as one DuckDB query per table: whether every expectation holds, in a fraction of the time.

What is compiled is the expectation's own JSON, so there is one definition of a rule; a property test holds this verdict
against Great Expectations' own on good and broken rows of every row type. A missing value breaks no rule about values,
as there. Nothing here says which rows are broken: `native.py` does, where something is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crl.checks.suite import NOT_NULL, SQL, Config

if TYPE_CHECKING:
    import duckdb

_ROWS_BREAKING = re.compile(r"SELECT \* FROM \{batch\} (?:WHERE|QUALIFY) \((.*)\) IS NOT TRUE", re.DOTALL)
"""What `suite.rows_breaking` writes: its predicate is evaluated in the one scan that all such rules share."""


def broken(
    connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table, rules: list[Config]
) -> list[tuple[Config, int]]:
    """The expectations of a registered table that do not hold, each with the number of rows that break it.

    Raises `duckdb.Error`.
    """
    # Arrow knows how many values are missing; a column that is not there is an error of the query.
    present = set(table.column_names)
    required = [each for each in rules if each["type"] == NOT_NULL and each["kwargs"]["column"] in present]
    counted = [(each, table.column(each["kwargs"]["column"]).null_count) for each in required]
    others = [each for each in rules if each not in required]
    if others:
        counts = connection.execute(_query(name, tuple(map(_Statement.of, others)))).fetchone() or ()
        counted += zip(others, counts, strict=True)
    return [(each, count) for each, count in counted if count]


@contextmanager
def connected(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees the tables by their names, and nothing else; what is registered in it goes with it."""
    with _database().cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        yield connection


class _Statement(str):
    """SQL of one expectation: a predicate that holds in sound rows, or a query for those that are broken."""

    is_query: bool

    @classmethod
    def of(cls, config: Config) -> _Statement:
        """Raises NotImplementedError for an expectation that no suite of the project uses."""
        query = config["kwargs"].get("unexpected_rows_query") if config["type"] == SQL else None
        predicate = _ROWS_BREAKING.fullmatch(query) if query is not None else None
        text = _predicate(config) if query is None else _unescaped(predicate[1]) if predicate else query
        made = cls(text)
        made.is_query = query is not None and predicate is None
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
    return f"SELECT {counts} FROM (SELECT {holds or '1'} FROM {table})"


def _predicate(config: Config) -> str:
    """The SQL of a native expectation; true where the value is missing, unless that is what it is about."""
    kwargs: Mapping[str, Any] = config["kwargs"]
    column = _quoted(kwargs.get("column", ""))
    match config["type"]:
        case kind if kind == NOT_NULL:
            return f"{column} IS NOT NULL"
        case "expect_column_values_to_be_unique":
            return f"{column} IS NULL OR count(*) OVER (PARTITION BY {column}) = 1"
        case "expect_compound_columns_to_be_unique":
            return f"count(*) OVER (PARTITION BY {', '.join(map(_quoted, kwargs['column_list']))}) = 1"
        case "expect_column_values_to_be_in_set":
            return f"{column} IS NULL OR {column} IN ({', '.join(map(_literal, kwargs['value_set']))})"
        case "expect_column_values_to_be_between":
            return _between(column, column, kwargs)
        case "expect_column_value_lengths_to_be_between":
            return _between(column, f"length({column})", kwargs)
        case "expect_column_values_to_match_regex":
            return f"{column} IS NULL OR regexp_matches({column}, {_literal(kwargs['regex'])})"
        case "expect_column_values_to_not_match_regex":
            return f"{column} IS NULL OR NOT regexp_matches({column}, {_literal(kwargs['regex'])})"
        case "expect_column_pair_values_a_to_be_greater_than_b":
            sign = ">=" if kwargs.get("or_equal") else ">"
            return f"{_quoted(kwargs['column_A'])} {sign} {_quoted(kwargs['column_B'])}"
    raise NotImplementedError(f"no compiled form of {config['type']}: write one here, or a query")


def _between(column: str, value: str, kwargs: Mapping[str, Any]) -> str:
    signs = {"min_value": ">=", "max_value": "<="}
    bounds = [f"{value} {sign} {kwargs[name]}" for name, sign in signs.items() if name in kwargs]
    return f"{column} IS NULL OR ({' AND '.join(bounds)})"


@cache
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb

    # Opened once: that takes 18 ms. One thread: a stage's tables are small, and the cores belong to the models.
    return duckdb.connect(config={"threads": 1})


def _unescaped(sql: str) -> str:
    return sql.replace("{{", "{").replace("}}", "}")


def _quoted(column: str) -> str:
    return f'"{column}"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
