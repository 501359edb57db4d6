"""The compiled pass and Great Expectations count the same broken rows for every expectation, in good and bad tables."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.checks.compiled import broken, connected
from crl.checks.stage import numbered
from crl.checks.suites import applying, key_of, row_types, suite_of
from crl.records import ROW_TYPES, Row, schema_of, table_of
from tests.marks import sampled
from tests.unit.checks import example_rows as examples

EXAMPLES: dict[type[Row], list[Row]] = {}
for _stage in examples.STAGES:
    for _row_type, _rows in _stage().items():
        if _rows:
            EXAMPLES.setdefault(_row_type, list(_rows))

_BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["", " ", "a", "ok", "guided", "0" * 64, "A" * 64, "0" * 64 + "\n", "bank/x", "é", "'"]),
    "int64": st.integers(-2, 3),
    "double": st.sampled_from([-1.5, -1.0, -0.0, 0.5, 1.0, 2.0, math.nan, math.inf, -math.inf]),
    "bool": st.booleans(),
}


def _values(field: pa.Field) -> st.SearchStrategy[Any]:
    kind = field.type
    if pa.types.is_list(kind):
        inner: st.SearchStrategy[Any] = st.lists(_values(pa.field("item", kind.value_type, nullable=False)), max_size=4)
    elif pa.types.is_integer(kind):
        inner = _BY_TYPE["int64"]
    elif pa.types.is_floating(kind):
        inner = _BY_TYPE["double"]
    else:
        inner = _BY_TYPE[str(kind)]
    return st.none() | inner if field.nullable else inner


@st.composite
def rows(draw: st.DrawFn, row_type: type[Row]) -> list[Row]:
    """Rows of a sound stage, some more than once, some of them changed in some columns."""
    listed = EXAMPLES[row_type] * draw(st.integers(0, 3))
    schema = schema_of(row_type)
    for place, row in enumerate(listed):
        names = draw(st.lists(st.sampled_from(schema.names), max_size=3, unique=True))
        changes = {name: draw(_values(schema.field(name))) for name in names}
        listed[place] = dataclasses.replace(row, **changes)  # type: ignore[type-var]
    return listed


def _said(config: dict[str, Any]) -> str:
    kwargs = {name: value for name, value in sorted(config["kwargs"].items()) if name != "batch_id"}
    return f"{config['type']} {kwargs}".replace(".0", "")  # Great Expectations makes 1.0 of 1


Counts = dict[str, int]


def verdicts(row_type: type[Row], listed: list[Row]) -> tuple[Counts, Counts]:
    """Broken rows by rule: (of the compiled pass, of Great Expectations); rules that hold are left out."""
    from crl.checks.native import validate  # seconds, for whoever only collects this file

    tables = numbered({row_type: table_of(row_type, listed)})
    name = row_type.table
    rules = applying(suite_of(name)["expectations"], frozenset(tables))
    with connected(tables) as connection:
        compiled = {_said(each): count for each, count in broken(connection, name, tables[name], rules)}
    result = validate(name, key_of(name), rules, tables)
    assert len(result.results) == len(rules)
    native = {
        _said(each.expectation_config.to_json_dict()): _count(each) for each in result.results if not each.success
    }
    return compiled, native


def _count(result: Any) -> int:
    from crl.checks.native import exception_of

    assert not exception_of(result.exception_info), result.exception_info
    found = result.result
    return int(found["unexpected_count"] if "unexpected_count" in found else found["observed_value"])


def test_every_row_type_has_examples() -> None:
    assert set(EXAMPLES) == set(ROW_TYPES)
    assert {row_type.table for row_type in ROW_TYPES} <= set(row_types()), "recipes of other tests may bring more"


@pytest.mark.parametrize("row_type", sampled(ROW_TYPES, 25), ids=lambda row_type: row_type.table)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_both_count_the_same_broken_rows(row_type: type[Row], data: st.DataObject) -> None:
    compiled, native = verdicts(row_type, data.draw(rows(row_type)))
    assert compiled == native


@pytest.mark.slow
def test_twice_the_rows_break_rules_of_every_row_type() -> None:
    """The comparison above is of something: keys at least are broken then, and both say so."""
    for row_type in ROW_TYPES:
        compiled, native = verdicts(row_type, EXAMPLES[row_type] * 2)
        assert compiled == native and any("unique" in rule for rule in native)
