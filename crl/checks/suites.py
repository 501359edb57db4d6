"""The project's suites: one per row type, as Great Expectations' own JSON. What is validated, listed and documented."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from crl.checks.cross import CROSS_RULES
from crl.checks.rules import SUITES
from crl.checks.suite import NOT_NULL, TABLES, Config, Suite, expectations_of, sentence_of
from crl.records import ROW_TYPE_BY_TABLE, ROW_TYPES, Row


def suite_names() -> tuple[str, ...]:
    """Tables that have a suite."""
    return (*(row_type.table for row_type in ROW_TYPES if row_type in SUITES), *_brought)


_brought: dict[str, tuple[type[Row], Suite]] = {}


def bring(row_type: type[Row], suite: Suite) -> None:
    """Add the rules of a row type that a recipe brings. Raises ValueError for a table that is the project's own."""
    if row_type.table in ROW_TYPE_BY_TABLE:
        raise ValueError(f"{row_type.__name__} has the table {row_type.table!r}, which is the project's own")
    _brought[row_type.table] = row_type, suite


def row_type_of(table: str) -> type[Row] | None:
    """The row type of a table; None where neither the project nor a recipe that was loaded has one."""
    brought = _brought.get(table)
    return ROW_TYPE_BY_TABLE.get(table) or (None if brought is None else brought[0])


@cache
def suite_of(table: str) -> dict[str, Any]:
    """The suite of a table: `name`, `expectations`, and `meta` with the columns that name a row. Not to be changed."""
    row_type = ROW_TYPE_BY_TABLE.get(table) or _brought[table][0]
    between = tuple(rule for rule in CROSS_RULES if rule.tables[0] == table)
    suite = SUITES[row_type] if row_type in SUITES else _brought[table][1]
    return {
        "name": table,
        "expectations": expectations_of(row_type, suite, between),
        "meta": {"key": list(suite.key)},
    }


def suite_with_own(table: str, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The suite of a table with the expectations that a user added."""
    suite = suite_of(table)
    return {**suite, "expectations": [*suite["expectations"], *own.get(table, {}).get("expectations", ())]}


def key_of(table: str) -> list[str]:
    """The columns that name a row of a table."""
    return list(suite_of(table)["meta"]["key"])


def applying(expectations: list[Config], written: frozenset[str]) -> list[Config]:
    """The expectations that speak only of tables that a stage wrote."""
    return [each for each in expectations if written.issuperset(each.get("meta", {}).get(TABLES, ()))]


def sentences(table: str, own: Mapping[str, Any] | None = None) -> list[str]:
    """The rules of a table in words, columns that are never missing in one; nothing for an unknown table.

    `own` is a user's suite of the table; its rules are added to the others.
    """
    if table not in suite_names():
        return []
    expectations = [*suite_of(table)["expectations"], *(own or {}).get("expectations", ())]
    required = [each["kwargs"]["column"] for each in expectations if each["type"] == NOT_NULL]
    told = [_with_tables(each) for each in expectations if each["type"] != NOT_NULL]
    return [*told, f"never missing: {', '.join(required)}"]


def _with_tables(config: Config) -> str:
    others = config.get("meta", {}).get(TABLES)
    return sentence_of(config) + (f" (with {' and '.join(others)})" if others else "")
