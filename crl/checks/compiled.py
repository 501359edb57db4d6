"""Whether every expectation of the project's suites holds, in a fraction of the time that Great Expectations takes.

What is compiled is the expectation's own JSON, so there is one definition of a rule: those that are queries become one
DuckDB query per table, the others calls of Arrow's functions (`vectorized.py`). A property test holds this verdict
against Great Expectations' own on good and broken rows of every row type. Nothing here says which rows are broken:
`native.py` does, where something is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from crl.checks.suite import SQL, Config
from crl.checks.vectorized import broken_rows

if TYPE_CHECKING:
    import duckdb

_ROWS_BREAKING = re.compile(r"SELECT \* FROM \{batch\} (?:WHERE|QUALIFY) \((.*)\) IS NOT TRUE", re.DOTALL)
"""What `suite.rows_breaking` writes: its predicate is evaluated in the one scan that all such rules share."""


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


@cache
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb

    # Opened once: that takes 18 ms. One thread: a stage's tables are small, and the cores belong to the models.
    return duckdb.connect(config={"threads": 1})


def _unescaped(sql: str) -> str:
    return sql.replace("{{", "{").replace("}}", "}")
