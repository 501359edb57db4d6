"""Arrow tables of row types from columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa

from crl.records import Row, schema_of


def columns(row_type: type[Row], count: int, /, **values: Any) -> pa.Table:
    """A table of `count` rows; a value that is no column is in every row, as does a field's own default."""
    schema = schema_of(row_type)
    for field in dataclasses.fields(row_type):  # type: ignore[arg-type]
        if field.name in values:
            continue
        if field.default_factory is not dataclasses.MISSING:
            values[field.name] = pa.array([field.default_factory()] * count, schema.field(field.name).type)
        elif field.default is not dataclasses.MISSING:
            values[field.name] = pa.array([field.default] * count, schema.field(field.name).type)
    if sorted(values) != sorted(schema.names):
        raise ValueError(f"{row_type.table}: {sorted(set(values) ^ set(schema.names))}")
    arrays = []
    for field in schema:
        value = values[field.name]
        if isinstance(value, str | int | float | bool | None):
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
        else:
            arrays.append(value.cast(field.type) if isinstance(value, pa.Array) else pa.array(value, field.type))
    return pa.table(arrays, schema=schema)
