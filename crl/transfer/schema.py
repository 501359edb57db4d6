"""What an exported bank must look like to be imported: it comes from anywhere, so nothing in it is believed.

One strict pydantic model for `provenance.json`, and one for the rows of each table, made of the row types. Vectors are
checked as arrays; whether they belong to their texts is checked where the embedder is at hand (`rounds/publish.py`).
"""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from crl.bank.segments import text_digest
from crl.config.base import NAME_PATTERN
from crl.config.environments import FamilyConfig
from crl.errors import BadInput
from crl.paths import short
from crl.records import vectors_of
from crl.report.story import KINDS, MADE, Story, story_of
from crl.run.imports import EMBEDDING
from crl.text.answers import is_blank, odd_character
from crl.transfer import PROVENANCE
from crl.transfer.gather import TABLES

EXPORT_AGAIN = "export the bank again: `crl bank export RUN --to FOLDER`"


def _id(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("an id must be printable, without blanks at its ends")
    return text


def _experience(text: str) -> str:
    _unicode(text)
    if is_blank(text):
        raise ValueError("a text must not be empty or blank")
    odd = odd_character(text)
    if odd is not None:
        raise ValueError(f"a text must not hold the control character {odd!r}")
    return text


def _unicode(text: str) -> str:
    text.encode()  # half of a surrogate pair: UnicodeEncodeError, a ValueError
    return text


def _json_object(text: str) -> str:
    try:
        _unicode(json.dumps(plain := strict_json(text), ensure_ascii=False))
        _check_story(story_of(plain))
    except (ValueError, TypeError, RecursionError) as error:
        lines = str(error).splitlines()
        raise ValueError(f"it must be the JSON of a story: {' '.join(lines[:3]) or type(error).__name__}") from None
    return text


def _outcome(value: float) -> float:
    if value not in (-1, 1):
        raise ValueError("an outcome must be +1 or -1")
    return value


def _check_story(story: Story) -> None:
    """What the types do not say, and readers of a story rely on; in the stories that it holds, too."""
    for event in story.events:
        if event.kind not in KINDS:
            raise ValueError(f"{event.event_id} is of the kind {event.kind!r}, expected one of {', '.join(KINDS)}")
        if event.kind in MADE and None in (event.version, event.text, event.content_digest):
            raise ValueError(f"{event.event_id} made a version, and has no number, text or digest of it")
        for parent in event.parents:
            _check_story(parent)
        if event.imported is not None:
            _check_story(story_of(event.imported.story))


def strict_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for what `json` alone takes: keys that are there twice, NaN and
    numbers beyond all bounds; RecursionError."""
    return json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_distinct)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _no_number(text)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {short(twice)} is there twice")
    return found


Id = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_id)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
FamilyName = Annotated[str, Field(pattern=FamilyConfig.model_fields["name"].metadata[0].pattern)]
Sha256 = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Version = Annotated[int, Field(ge=1, lt=2**63)]
Share = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Difference = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1.0001, le=1.0001, allow_inf_nan=False)]
Experience = Annotated[str, AfterValidator(_experience)]

_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("entry_id", "kind", "distillation_id", "generation_id", "operation_id"), Id),
    **dict.fromkeys(("episode_id", "extractor_checkpoint"), Id),
    "family": FamilyName,
    **dict.fromkeys(("parents", "episode_ids"), list[Id]),
    **dict.fromkeys(("content_digest", "extractor_digest"), Sha256),
    **dict.fromkeys(("order", "round", "created_round", "updated_round", "retrieved", "uses"), Count),
    "extractor_updates": Count,
    "version": Version,
    "text": Experience,
    **dict.fromkeys(("prompt", "output"), Annotated[str, AfterValidator(_unicode)]),
    "story": Annotated[str, AfterValidator(_json_object)],
    **dict.fromkeys(("mean_outcome", "free_mean"), Share),
    "outcome": Annotated[float, AfterValidator(_outcome)],
    "guided_minus_free": Difference,
    "similarity": Cosine,
}
"""What the values of a column must be, beside what its row type says; it is optional where that says so."""
_KEYS = {"entries": ("entry_id",), "lineage": ("entry_id", "version"), "uses": ("entry_id", "version", "episode_id")}
_STRICT = ConfigDict(strict=True, extra="forbid")


class _File(BaseModel):
    model_config = _STRICT
    sha256: Sha256
    rows: Count


class _Embedder(BaseModel):
    model_config = _STRICT
    name: Id
    digest: Sha256
    dimension: Annotated[int, Field(ge=1, le=65_536)] | None


class _Model(BaseModel):
    model_config = _STRICT
    name: Id
    digest: Sha256


class Provenance(BaseModel):
    """`provenance.json`."""

    model_config = _STRICT
    format: str
    format_version: int
    experiment: Name
    round: Count
    entries: Count
    method_digest: Sha256
    stage: Id
    stage_digest: Sha256
    snapshot_digest: Sha256
    embedder: _Embedder
    families: list[FamilyName]
    versions: dict[Id, Id]
    data: dict[FamilyName, dict[Id, Sha256]] = {}
    models: dict[Name, _Model] = {}
    files: dict[str, _File]


def check_provenance(path: Path, content: Mapping[str, Any]) -> None:
    """Raise BadInput naming the first value of `provenance.json` that is not as it must be."""
    try:
        Provenance.model_validate(content)
    except ValidationError as error:
        missing = [each["loc"] for each in error.errors() if each["type"] == "missing"]
        lacking = sorted(str(loc[0]) for loc in missing if len(loc) == 1)
        problem = f"lacks {', '.join(lacking)}" if lacking else _told(error)
        raise refused(path, f"{PROVENANCE} {problem}") from None


def check_table(path: Path, name: str, rows: Iterable[Any]) -> None:
    """Raise BadInput naming the first row and column of a table that is not as it must be. `rows` are its rows as
    plain data, without vectors."""
    model, key = _row_model(name), _KEYS[name]
    seen: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows, 1):
        try:
            model.model_validate(row)
        except ValidationError as error:
            raise refused(path, f"row {number}, {_told(error)}") from None
        identity = tuple(row[column] for column in key)
        if identity in seen:
            raise refused(path, f"row {number}, column {', '.join(key)}: {identity} is in row {seen[identity]} too")
        seen[identity] = number
        for column, problem in _between(name, row):
            raise refused(path, f"row {number}, column {column}: {problem}")


def _between(name: str, row: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What does not fit together in a row."""
    if "content_digest" in row and text_digest(row["text"]) != row["content_digest"]:
        yield "content_digest", f"it is not the SHA-256 of the text, {text_digest(row['text'])}"
    if name == "entries" and json.loads(row["story"])["entry_id"] != row["entry_id"]:
        yield "story", f"it is not that of {row['entry_id']}"


def check_bank(paths: Mapping[str, Path], tables: Mapping[str, pa.Table], provenance: Mapping[str, Any]) -> None:
    """Raise BadInput where the tables say otherwise than `provenance.json`, or a vector is none."""
    entries, path = tables["entries"], paths["entries"]
    for name, table in tables.items():
        told = next(each["rows"] for file, each in provenance["files"].items() if paths[name].as_posix().endswith(file))
        if table.num_rows != told:
            raise refused(paths[name], f"it has {table.num_rows} rows, {PROVENANCE} says {told}")
    if entries.num_rows != provenance["entries"]:
        raise refused(path, f"it has {entries.num_rows} rows, {PROVENANCE} says {provenance['entries']} entries")
    if EMBEDDING in entries.column_names:
        lengths_N = np.linalg.norm(vectors_of(entries[EMBEDDING]).astype(np.float64), axis=1)
        # Not a number and infinity fail the comparison too.
        for row in np.flatnonzero(~(np.abs(lengths_N - 1) < 1e-2))[:1]:
            length = f"its length is {lengths_N[row]:g}, that of a vector 1"
            raise refused(path, f"row {row + 1}, column {EMBEDDING}: {length}")


def check_columns(path: Path, found: pa.Schema, expected: pa.Schema) -> None:
    """Raise BadInput naming the first column of a Parquet file that is not as it must be."""
    for name in expected.names:
        if (count := found.names.count(name)) != 1:
            raise refused(path, f"column {name}: there are {count} of it, expected 1")
        if (holds := found.field(name).type) != (wanted := expected.field(name).type):
            raise refused(path, f"column {name}: it holds {holds}, expected {wanted}")
    for name in found.names:
        if name not in expected.names:
            raise refused(path, f"column {name!r}: the table has no such column")


def check_no_nulls(path: Path, table: pa.Table, column: str) -> None:
    """Raise BadInput naming the first row in which a column of vectors has none, or one with a hole."""
    if not table[column].null_count and not any(chunk.flatten().null_count for chunk in table[column].chunks):
        return
    for number, vector in enumerate(table[column], 1):
        if not vector.is_valid or vector.values.null_count:
            raise refused(path, f"row {number}, column {column}: a number is missing")


def refused(path: Path, reason: str) -> BadInput:
    """The error for a file that cannot be imported."""
    return BadInput(
        f"the exported bank cannot be imported: {path.name}: {reason}",
        expected="files as `crl bank export` writes them",
        where=str(path),
        next_step=EXPORT_AGAIN,
    )


@cache
def _row_model(name: str) -> type[BaseModel]:
    """The strict model of a table's rows: its columns and what may be null are those of the row type."""
    fields: dict[str, Any] = {}
    for column, hint in typing.get_type_hints(TABLES[name]).items():
        if column != "table":
            kind = _COLUMNS.get(column, hint)
            fields[column] = (kind | None if type(None) in typing.get_args(hint) else kind, ...)
    return create_model(TABLES[name].__name__, __config__=_STRICT, **fields)


def _told(error: ValidationError) -> str:
    """The first problem: where it is, what is expected, what was found."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    shown = repr(first["input"])
    shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
    told = f"{first['msg'].removeprefix('Value error, ')}; found {shown}"
    told = "it is missing" if first["type"] == "missing" else told
    return f"column {place}: {told}" if place else told
