"""A session in which SQL from anywhere can be run: it sees a run's views and nothing else, and changes nothing.

DuckDB itself opens the files that the views read, by their paths, and no other: no directory, no link, no extension, no
variable of the Python program, no temporary file; none of this can be switched back on. But those files it would also
write: so what is asked must be one SELECT with nothing in it but queries (to DuckDB what begins with
`WITH x AS (COPY … TO …)` is a SELECT), and table functions of a short list only
(`json_execute_serialized_sql` would run what is hidden in a string).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import duckdb

from crl.errors import BadInput
from crl.report.view_sql import MACROS, NO_BANK

R = TypeVar("R")

TABLE_FUNCTIONS = frozenset(
    {
        *(signature.partition("(")[0] for signature in MACROS),
        "range", "generate_series", "unnest", "repeat", "json_each", "json_tree", "histogram", "histogram_values",
        "duckdb_columns", "duckdb_functions", "duckdb_keywords", "duckdb_tables", "duckdb_types", "duckdb_views",
        "pragma_table_info",
    }
)  # fmt: skip
"""What FROM may call: none reads a file or changes anything."""
_OUTSIDE = frozenset({"current_setting", "getenv"})
"""Functions that tell of the session and the machine, such as where the run lies."""
_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_INTERRUPT_SECONDS = 0.05


def lock(connection: duckdb.DuckDBPyConnection, paths: Iterable[str]) -> None:
    """From now on the session opens these files only, and this cannot be undone."""
    connection.execute("SET allowed_paths = $paths", {"paths": list(paths)})
    for statement in (
        "SET temp_directory = ''",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise BadInput unless this is one SELECT that only reads the views."""
    try:
        serialized = connection.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchall()[0][0]
        content = json.loads(serialized)
    except (RecursionError, duckdb.Error) as error:
        found = str(error).splitlines()[0] if isinstance(error, duckdb.Error) else "it is nested too deep"
        raise _failed(sql, found) from None
    if content["error"] and content["error_type"] != "not implemented":
        raise _failed(sql, content["error_message"])
    if content["error"] or len(content["statements"]) != 1:
        if any(statement.type == duckdb.StatementType.MULTI for statement in duckdb.extract_statements(sql)):
            raise BadInput(
                "PIVOT without an IN list is more than one statement: it looks the values up that become columns",
                expected="PIVOT view ON column IN ('value', …) USING …",
                where=sql.strip()[:200],
                next_step="list the values, as in: PIVOT success_by_condition "
                "ON condition IN ('with_bank', 'without_bank') USING any_value(success) GROUP BY round",
            )
        raise BadInput(
            "only one SELECT can be run on a run directory",
            expected="SELECT …, FROM …, WITH … SELECT …, SHOW TABLES, DESCRIBE view or SUMMARIZE view",
            where=sql.strip()[:200],
            next_step="send one SELECT at a time; to keep its result: --format csv > file",
        )
    for node in _walk(content["statements"]):
        kind = str(node.get("type", ""))
        # WITH x AS (COPY …) is a SELECT to DuckDB.
        if kind.endswith("_NODE") and kind not in _QUERIES:
            raise _refused(f"{kind.partition('_')[0]} inside a SELECT", "WITH name AS (SELECT …)", sql)
        if node.get("class") == "FUNCTION" and (name := str(node.get("function_name")).lower()) in _OUTSIDE:
            raise _refused(f"{name}()", "functions of values; this one tells of what is outside of the run", sql)
        if kind == "TABLE_FUNCTION" and (name := node["function"]["function_name"].lower()) not in TABLE_FUNCTIONS:
            raise _refused(f"{name}() in FROM", f"views, and {', '.join(sorted(TABLE_FUNCTIONS))}", sql)


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], R]) -> R:
    """What `work` does on the connection, in a thread of its own: Ctrl-C then ends a query in the middle."""
    outcome: Future[R] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="query", daemon=True)
    try:
        thread.start()
        return outcome.result()
    except KeyboardInterrupt:
        # Again and again: DuckDB forgets an interruption that comes between two queries, or before the first.
        while thread.is_alive():
            connection.interrupt()
            thread.join(_INTERRUPT_SECONDS)
        raise


def bad_sql(sql: str, error: duckdb.Error) -> BadInput:
    """What to tell whoever typed SQL that fails."""
    if NO_BANK in str(error):
        found, _, there = str(error).partition(NO_BANK)[2].partition("; there are")
        return BadInput(
            f"{NO_BANK}{found}",
            expected=f"a round whose bank is published: there are{there}" if there else "a run with a bank",
            where=sql.strip()[:200],
            next_step="`SELECT round FROM bank_snapshots` lists them; latest_round() is the newest",
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return BadInput(
            f"the query needs more memory than it may take: {str(error).splitlines()[0]}",
            expected="a query that takes less",
            where=sql.strip()[:200],
            next_step="narrow it (WHERE round = …, fewer columns), or allow more: --memory GB",
        )
    if isinstance(error, duckdb.PermissionException):
        return _refused("files", "the views of the run; `SHOW TABLES` lists them", sql)
    return _failed(sql, error)


def _failed(sql: str, why: object) -> BadInput:
    return BadInput(
        f"the query failed: {why}",
        where=sql.strip()[:200],
        next_step='`SHOW TABLES` lists views, `DESCRIBE episodes` the columns of one; "group" and "order" need quotes',
    )


def _walk(parsed: Any) -> Iterator[dict[str, Any]]:
    """Every object of a parsed query."""
    pending = [parsed]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def _refused(what: str, expected: str, sql: str) -> BadInput:
    return BadInput(
        f"a query on a run cannot use {what}",
        expected=expected,
        where=sql.strip()[:200],
        next_step="a program of your own can: docs/sql.md shows how to open a run from Python or another client",
    )
