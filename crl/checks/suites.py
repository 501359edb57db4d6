"""The rules of row types (`crl.records.Rules`) as suites of Great Expectations: what is validated, listed, documented.

Each rule is written out as plain data (`type`, `kwargs`, `description`, `meta`), Great Expectations' own JSON. Whatever
a native expectation type can say is one; the rest is an `unexpected_rows_expectation`, a query for the rows that break
the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from crl.records import ROW_TYPE_BY_TABLE, Row, Rules, schema_of

Config = dict[str, Any]
"""One expectation as plain data."""

SQL = "unexpected_rows_expectation"
NOT_NULL = "expect_column_values_to_not_be_null"
TABLES = "tables"
"""Key of `meta`: the other tables that a query reads. The rule applies where a stage wrote all of them."""
SUMMARIZED = ("token_ids", "loss_mask", "logprobs", "choices")
"""List columns that counts stand for in tables that have all of them (`crl.checks.stage.summarize`)."""

brought: dict[str, type[Row]] = {}
"""Row types by table that recipes brought."""


def row_types() -> dict[str, type[Row]]:
    """The row types by table: the project's own, and those that recipes which were loaded bring."""
    return {**ROW_TYPE_BY_TABLE, **brought}


def bring(row_types: Iterable[type[Row]]) -> None:
    """Add row types that a recipe brings. Raises ValueError for a table that is the project's own."""
    for row_type in row_types:
        if row_type.table in ROW_TYPE_BY_TABLE:
            raise ValueError(f"{row_type.__name__} has the table {row_type.table!r}, which is the project's own")
        brought[row_type.table] = row_type
        suite_of.cache_clear()


@cache
def suite_of(table: str) -> dict[str, Any]:
    """The suite of a table: `name`, `expectations`, and `meta` with the columns that name a row. Not to be changed."""
    types = row_types()
    rules = (rule for row_type in types.values() for rule in row_type.rules.between.items())
    between = {rule: query for rule, query in rules if _tables_of(query)[0] == table}
    return {
        "name": table,
        "expectations": expectations_of(types[table], between),
        "meta": {"key": list(types[table].rules.key)},
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
    if table not in row_types():
        return []
    expectations = [*suite_of(table)["expectations"], *(own or {}).get("expectations", ())]
    required = [each["kwargs"]["column"] for each in expectations if each["type"] == NOT_NULL]
    told = [_with_tables(each) for each in expectations if each["type"] != NOT_NULL]
    return [*told, f"never missing: {', '.join(required)}"]


def _with_tables(config: Config) -> str:
    others = config.get("meta", {}).get(TABLES)
    return sentence_of(config) + (f" (with {' and '.join(others)})" if others else "")


def rows_breaking(predicate: str) -> str:
    """The query for the rows of `{batch}` in which a predicate is false or null; window functions are allowed."""
    clause = "QUALIFY" if " OVER " in predicate else "WHERE"
    return f"SELECT * FROM {{batch}} {clause} ({_escaped(predicate)}) IS NOT TRUE"


def expectations_of(row_type: type[Row], between: Mapping[str, str], rules: Rules | None = None) -> list[Config]:
    """Every rule of a row type (or these `rules` in its place) as an expectation, those `between` tables last."""
    rules = rules or row_type.rules
    found = [_expectation(NOT_NULL, column=column) for column in _required(row_type)]
    found += map(_unique, (rules.key, *rules.unique))
    found += [
        _expectation("expect_column_value_lengths_to_be_between", column=name, min_value=1) for name in rules.filled
    ]
    found += [each for name in rules.sha256 for each in _sha256(name)]
    for name, allowed in rules.sets.items():
        found.append(_expectation("expect_column_values_to_be_in_set", column=name, value_set=list(allowed)))
    for name, (low, high) in rules.ranges.items():
        bounds = {key: bound for key, bound in (("min_value", low), ("max_value", high)) if bound is not None}
        found.append(_expectation("expect_column_values_to_be_between", column=name, **bounds))
    for name, pattern in rules.patterns.items():
        found.append(_expectation("expect_column_values_to_match_regex", column=name, regex=pattern))
    for higher, lower in rules.ordered:
        kwargs = {"column_A": higher, "column_B": lower, "or_equal": True}
        found.append(_expectation("expect_column_pair_values_a_to_be_greater_than_b", **kwargs))
    for sentence, predicate in rules.rows.items():
        found.append(_expectation(SQL, sentence, unexpected_rows_query=rows_breaking(predicate)))
    for sentence, selected in between.items():
        first, *others = _tables_of(selected)
        query = _escaped(selected).replace(f" {first} ", " {batch} ", 1)
        found.append({**_expectation(SQL, sentence, unexpected_rows_query=query), "meta": {TABLES: others}})
    return found


def sentence_of(config: Config) -> str:
    """What an expectation says: its description, else its kind in words, else its type and arguments."""
    if config.get("description"):
        return str(config["description"])
    kwargs = config["kwargs"]
    column, low, high = kwargs.get("column"), _number(kwargs.get("min_value")), _number(kwargs.get("max_value"))
    if kwargs.get("mostly", 1) == 1:
        match config["type"]:
            case kind if kind == NOT_NULL:
                return f"{column} is never missing"
            case "expect_column_values_to_be_unique":
                return f"{column} is unique"
            case "expect_compound_columns_to_be_unique":
                return f"{' and '.join(kwargs['column_list'])} are unique"
            case "expect_column_value_lengths_to_be_between" if (low, high) == (1, None):
                return f"{column} is not empty"
            case "expect_column_values_to_be_in_set":
                return f"{column} is one of {', '.join(map(str, kwargs['value_set']))}"
            case "expect_column_values_to_be_between" if low is not None:
                return f"{column} is " + (f"at least {low}" if high is None else f"between {low} and {high}")
            case "expect_column_values_to_match_regex":
                return f"{column} matches {kwargs['regex']}"
            case "expect_column_pair_values_a_to_be_greater_than_b" if kwargs.get("or_equal"):
                return f"{kwargs['column_A']} is at least {kwargs['column_B']}"
    return f"{config['type']}({', '.join(f'{name}={value!r}' for name, value in kwargs.items() if name != 'batch_id')})"


def _number(bound: Any) -> Any:
    """Great Expectations makes 1.0 of 1."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _required(row_type: type[Row]) -> Iterator[str]:
    """Columns that may not be null, but for those that counts stand for."""
    schema = schema_of(row_type)
    dropped = SUMMARIZED if set(SUMMARIZED) <= set(schema.names) else ()
    return (each.name for each in schema if not each.nullable and each.name not in dropped)


def _unique(columns: tuple[str, ...]) -> Config:
    if len(columns) == 1:
        return _expectation("expect_column_values_to_be_unique", column=columns[0])
    return _expectation("expect_compound_columns_to_be_unique", column_list=list(columns))


def _sha256(column: str) -> Iterator[Config]:
    # Not one pattern that ends in `$`: Python would let a line break follow.
    told = f"{column} is a SHA-256"
    yield _expectation(
        "expect_column_value_lengths_to_be_between", f"{told} (64 digits)", column=column, min_value=64, max_value=64
    )
    yield _expectation(
        "expect_column_values_to_not_match_regex", f"{told} (hexadecimal)", column=column, regex="[^0-9a-f]"
    )


def _expectation(kind: str, description: str | None = None, /, **kwargs: Any) -> Config:
    told = {} if description is None else {"description": description}
    return {"type": kind, "kwargs": kwargs, **told}


def _tables_of(query: str) -> list[str]:
    """The tables that a query names, in their order. Raises ValueError for a name that is none: no stage would be held
    against the rule."""
    found = list(dict.fromkeys(re.findall(r"(?<!DISTINCT )\b(?:FROM|JOIN)\s+(\w+)", query)))
    if unknown := [name for name in found if name not in row_types()]:
        raise ValueError(f"{unknown[0]!r} is no table: {query}")
    return found


def _escaped(sql: str) -> str:
    """Braces of SQL are doubled: `{batch}` is the one that Great Expectations fills in."""
    return sql.replace("{", "{{").replace("}", "}}")
