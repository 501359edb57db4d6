"""What a row type is, the form of its rules, its Arrow schema, and the way from rows to tables and back.

A row type is a frozen dataclass whose annotations carry a description and, where the Python type is too wide, the
Arrow type; below its columns stand its :class:`Rules`, which `crl/checks` compiles. :func:`schema_of` derives the
Arrow schema (descriptions become field metadata), :func:`table_of` and :func:`rows_of` convert. Rows hold no clock
times: equal runs have equal rows.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

RECORD_FORMAT = 4
"""The form of the record: raised by hand whenever a column, a manifest or the place of a file changes its meaning. A
run says in its experiment file which one it has; one of another format is refused, not translated. A new column needs
no new format: it has a default, and its row type names it in `added`."""
TOKENS = pa.list_(pa.int32())
FLOATS = pa.list_(pa.float32())
MASK = pa.list_(pa.int8())
CHOICES = pa.list_(pa.list_(pa.int32()))
CHOICE_FLOATS = pa.list_(pa.list_(pa.float32()))
_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """What must hold in a table; that columns without nulls have none follows from the row type itself.

    SQL does not see the token lists of rows that have all of them (`token_ids`, `loss_mask`, `logprobs`, `choices`):
    `crl/checks/stage.py` turns them into counts first (`n_tokens`, `trained`, `positive_logprobs`, …).
    """

    key: tuple[str, ...]
    """Columns that together are unique; they also name a row in messages."""
    filled: tuple[str, ...] = ()
    """Columns whose text is not empty."""
    sha256: tuple[str, ...] = ()
    """Columns that hold a SHA-256 in hex."""
    unique: tuple[tuple[str, ...], ...] = ()
    """Further columns that together are unique."""
    sets: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Allowed values by column."""
    ranges: Mapping[str, tuple[float | None, float | None]] = dataclasses.field(default_factory=dict)
    """Smallest and largest value by column."""
    patterns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Regular expression by column, found anywhere in its text."""
    ordered: tuple[tuple[str, str], ...] = ()
    """Pairs of columns of which the first is never below the second."""
    rows: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """SQL predicate by the sentence that describes it; a row breaks it where it is false or null."""
    between: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """SQL by the sentence that describes it, for what must hold between tables that one stage writes: it selects the
    rows that break the rule of the first table it names, their position from 0 as `row` and the `id` to name. It
    applies where a stage wrote all the tables that it names."""


def together(*columns: str) -> str:
    """The predicate that all of the columns are null, or none is."""
    first, *others = columns
    return " AND ".join(f"({first} IS NULL) = ({other} IS NULL)" for other in others)


TOKEN_ROWS = {
    "token_ids, loss_mask and logprobs have one length": "n_tokens = n_mask AND n_tokens = n_logprobs",
    "loss_mask holds 0 and 1 only": "bad_masks = 0",
    "token ids are not negative": "bad_tokens = 0",
    "log-probabilities are finite": "nonfinite_logprobs = 0",
    "log-probabilities are not positive": "positive_logprobs = 0",
    "log-probabilities are 0 where the mask is 0": "unmasked_logprobs = 0",
    "choices are those of every trained token, or there are none": "chosen IN (0, trained)",
}
"""Predicates of every table that has token lists."""


class Row:
    """Base of every row type. `table` is the file's stem and the name of the SQL view."""

    table: ClassVar[str]
    rules: ClassVar[Rules]
    added: ClassVar[tuple[str, ...]] = ()
    """Columns that came after the first release of this format, each with a default: files of before lack them."""


@dataclasses.dataclass(frozen=True)
class OutsideRows:
    """Rows that a person brought, before they are taken: `crl/checks/outside.py` validates them."""

    row_type: type[Row]
    rows: pa.Table
    file: str
    """Where they are from, for messages."""
    next_step: str
    """What to do where they cannot be taken."""
    rules: Rules | None = None
    """Those of this file, where they are more than those of the type."""


R = TypeVar("R", bound=Row)


def _arrow_type(python_type: Any) -> tuple[pa.DataType, bool]:
    origin = typing.get_origin(python_type)
    if origin in (types.UnionType, typing.Union):
        inner = next(arg for arg in typing.get_args(python_type) if arg is not type(None))
        return _arrow_type(inner)[0], True
    if origin is list:
        return pa.list_(_arrow_type(typing.get_args(python_type)[0])[0]), False
    return _ARROW[python_type], False


_SCHEMAS: dict[type[Row], pa.Schema] = {}


def schema_of(row_type: type[Row]) -> pa.Schema:
    """Arrow schema of a row type; a field's description is its metadata entry `description`."""
    if row_type in _SCHEMAS:
        return _SCHEMAS[row_type]
    hints = typing.get_type_hints(row_type, include_extras=True)
    fields = []
    for field in dataclasses.fields(row_type):  # type: ignore[arg-type]
        python_type, *extras = typing.get_args(hints[field.name])
        arrow, nullable = _arrow_type(python_type)
        for extra in extras:
            if isinstance(extra, pa.DataType):
                arrow = extra
        fields.append(pa.field(field.name, arrow, nullable=nullable, metadata={"description": extras[-1]}))
    _SCHEMAS[row_type] = pa.schema(fields)
    return _SCHEMAS[row_type]


def table_of(row_type: type[R], rows: Iterable[R]) -> pa.Table:
    """Rows as an Arrow table with the schema of their type, in the order given."""
    listed = list(rows)
    schema = schema_of(row_type)
    columns = [pa.array([getattr(row, name) for row in listed], type=schema.field(name).type) for name in schema.names]
    return pa.table(columns, schema=schema)


def with_added(row_type: type[Row], table: pa.Table) -> pa.Table:
    """A table as it was written, with the columns that its row type was given since, each at its default."""
    for name in (name for name in row_type.added if name not in table.column_names):
        table = table.append_column(schema_of(row_type).field(name), _defaults(row_type, name, len(table)))
    return table.select(schema_of(row_type).names) if row_type.added else table


def without_defaults(row_type: type[Row], table: pa.Table) -> pa.Table:
    """A table as it is written: an added column that holds nothing but its default is left out (the inverse of
    :func:`with_added`), so that what nobody uses changes no digest."""
    unused = [
        name for name in row_type.added if table[name].combine_chunks().equals(_defaults(row_type, name, len(table)))
    ]
    return table.drop_columns(unused) if unused else table


def _defaults(row_type: type[Row], name: str, count: int) -> pa.Array:
    field = row_type.__dataclass_fields__[name]  # type: ignore[attr-defined]
    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    return pa.array([value] * count, schema_of(row_type).field(name).type)


def rows_of(row_type: type[R], table: pa.Table) -> list[R]:
    """The rows of an Arrow table (the inverse of :func:`table_of`)."""
    return [row_type(**row) for row in with_added(row_type, table).select(schema_of(row_type).names).to_pylist()]


def rows_with(table: pa.Table, column: str, values: Iterable[str]) -> pa.Table:
    """The rows of a table whose text in a column is one of some values, in their order."""
    return table.filter(pc.is_in(table[column], value_set=pa.array(list(values), pa.string())))


def vectors_of(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """A column of vectors of one dimension as an array [N, D]."""
    whole = column.combine_chunks()
    vectors_ND: NDArray[np.float32] = whole.flatten().to_numpy(zero_copy_only=False)
    return vectors_ND.reshape(len(whole), whole.type.list_size)
