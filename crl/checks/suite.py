"""How the rules of a row type are written down, and how they become expectations of Great Expectations.

A `Suite` says in few words what must hold in a table; :func:`expectations_of` writes each rule out as plain data
(`type`, `kwargs`, `description`, `meta`), which is Great Expectations' own JSON. Whatever a native expectation type can
say is one; the rest is an `unexpected_rows_expectation`, a query for the rows that break the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crl.records import Row, schema_of

Config = dict[str, Any]
"""One expectation as plain data."""

SQL = "unexpected_rows_expectation"
NOT_NULL = "expect_column_values_to_not_be_null"
TABLES = "tables"
"""Key of `meta`: the other tables that a query reads. The rule applies where a stage wrote all of them."""
SUMMARIZED = ("token_ids", "loss_mask", "logprobs", "choices")
"""List columns that counts stand for in tables that have all of them (`summaries.py`)."""


@dataclass(frozen=True)
class Suite:
    """The rules of one row type; that columns without nulls have none follows from the type itself."""

    key: tuple[str, ...]
    """Columns that together are unique; they also name a row in messages."""
    filled: tuple[str, ...] = ()
    """Columns whose text is not empty."""
    sha256: tuple[str, ...] = ()
    """Columns that hold a SHA-256 in hex."""
    unique: tuple[tuple[str, ...], ...] = ()
    """Further columns that together are unique."""
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Allowed values by column."""
    ranges: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Smallest and largest value by column."""
    patterns: dict[str, str] = field(default_factory=dict)
    """Regular expression by column, found anywhere in its text."""
    ordered: tuple[tuple[str, str], ...] = ()
    """Pairs of columns of which the first is never below the second."""
    rows: dict[str, str] = field(default_factory=dict)
    """SQL predicate by the sentence that describes it; a row breaks it where it is false or null."""


@dataclass(frozen=True)
class CrossRule:
    """One rule between tables; `violations` selects rows of the first of them, which have their position in `row`."""

    rule: str
    tables: tuple[str, ...]
    violations: str


def rows_breaking(predicate: str) -> str:
    """The query for the rows of `{batch}` in which a predicate is false or null; window functions are allowed."""
    clause = "QUALIFY" if " OVER " in predicate else "WHERE"
    return f"SELECT * FROM {{batch}} {clause} ({_escaped(predicate)}) IS NOT TRUE"


def expectations_of(row_type: type[Row], suite: Suite, cross_rules: tuple[CrossRule, ...] = ()) -> list[Config]:
    """Every rule of a row type as an expectation, those between tables last."""
    found = [_expectation(NOT_NULL, column=column) for column in _required(row_type)]
    found += map(_unique, (suite.key, *suite.unique))
    found += [
        _expectation("expect_column_value_lengths_to_be_between", column=name, min_value=1) for name in suite.filled
    ]
    found += [each for name in suite.sha256 for each in _sha256(name)]
    for name, allowed in suite.sets.items():
        found.append(_expectation("expect_column_values_to_be_in_set", column=name, value_set=list(allowed)))
    for name, (low, high) in suite.ranges.items():
        bounds = {key: bound for key, bound in (("min_value", low), ("max_value", high)) if bound is not None}
        found.append(_expectation("expect_column_values_to_be_between", column=name, **bounds))
    for name, pattern in suite.patterns.items():
        found.append(_expectation("expect_column_values_to_match_regex", column=name, regex=pattern))
    for higher, lower in suite.ordered:
        kwargs = {"column_A": higher, "column_B": lower, "or_equal": True}
        found.append(_expectation("expect_column_pair_values_a_to_be_greater_than_b", **kwargs))
    for sentence, predicate in suite.rows.items():
        found.append(_expectation(SQL, sentence, unexpected_rows_query=rows_breaking(predicate)))
    for rule in cross_rules:
        first, *others = rule.tables
        query = _escaped(rule.violations).replace(f" {first} ", " {batch} ", 1)
        found.append({**_expectation(SQL, rule.rule, unexpected_rows_query=query), "meta": {TABLES: others}})
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


def together(*columns: str) -> str:
    """The predicate that all of the columns are null, or none is."""
    first, *others = columns
    return " AND ".join(f"({first} IS NULL) = ({other} IS NULL)" for other in others)


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


def _escaped(sql: str) -> str:
    """Braces of SQL are doubled: `{batch}` is the one that Great Expectations fills in."""
    return sql.replace("{", "{{").replace("}", "}}")
