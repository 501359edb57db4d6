"""SQL views over the Parquet files of a run directory.

One view a row type of `crl/records.py`, over every round and stage that wrote it, plus:

- `approvals`: the rows of that type with the time of the decision, which stands in the stage's manifest;
- `stages`: one row a committed stage, from its manifest; `rounds`: one row a round;
- `bank_text`: the bank snapshots with the text of each entry;
- `lineage`: one row a use of an experience, with all that led to it (`crl/report/lineage.py`).

A row type that holds no `round` or `stage` of its own gets the one of the directory it lies in. A table that nobody has
written yet is an empty view with the right columns. The Parquet files are the truth: `catalog.duckdb` holds view
definitions only, with absolute paths so that any DuckDB client can open it from anywhere; `crl catalog RUN` writes it
anew after a run was moved.

Which files a view covers is decided when a query runs: of a round that is being written, the committed stages show.
Queries about "the newest round" should therefore name a round (`crl status RUN` tells it).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from crl.errors import BadInput, RecordDamaged, RunDirectoryUnusable
from crl.records import ROW_TYPES, Approval, BankChange, BankEntry, BankText, Row, schema_of
from crl.report.lineage import LINEAGE
from crl.run import cache
from crl.run.files import temporary

CATALOG = "catalog.duckdb"
# A committed stage starts with a letter; what is being written starts with a dot.
_ROUND_GLOB = "[0-9]*"
_STAGE_GLOB = "rounds/{round}/[a-z]*"
_SEGMENT_GLOB = "bank/segments/*.parquet"
_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.int8(): "TINYINT",
    pa.float64(): "DOUBLE",
    pa.float32(): "FLOAT",
    pa.bool_(): "BOOLEAN",
}
_PLACE = (
    ("round", "BIGINT", "CAST(parse_path(filename)[-3] AS BIGINT)"),
    ("stage", "VARCHAR", "parse_path(filename)[-2]"),
)
# Columns that a view takes from the manifest of the stage, because rows hold no clock times: name, place, description.
_NOTED: dict[type[Row], tuple[tuple[str, str, str], ...]] = {
    Approval: (("decided_at", "$.provenance.decision.decided_at", "when the person decided: ISO 8601, UTC"),),
}

# The bank of every round, from the changes: a row of `bank_changes` holds until the entry's next one.
_BANK = """
WITH changes AS (
    SELECT *, lead(round, 1, 9223372036854775807) OVER (PARTITION BY entry_id ORDER BY round) AS until FROM bank_changes
)
SELECT bank_snapshots.round, bank_snapshots.stage, {columns}
FROM bank_snapshots JOIN changes
    ON changes.round <= bank_snapshots.round AND bank_snapshots.round < changes.until
WHERE NOT changes.removed
"""

_BANK_TEXT = """
SELECT bank.*, bank_texts.text
FROM bank LEFT JOIN bank_texts USING (content_digest)
"""

_STAGES = """
SELECT
    CAST(parse_path(filename)[-3] AS BIGINT) AS round,
    parse_path(filename)[-2] AS stage,
    {columns},
    TRY_CAST(content AS JSON) AS manifest
FROM read_text({files})
"""
# Columns of `stages` by where they stand in a manifest.
_MANIFEST = (
    ("digest", "VARCHAR", "$.digest"),
    ("seconds", "DOUBLE", "$.provenance.seconds"),
    ("started", "VARCHAR", "$.provenance.started"),
    ("attempt", "BIGINT", "$.provenance.attempt"),
    ("host", "VARCHAR", "$.provenance.host"),
    ("sequence", "BIGINT", "$.provenance.sequence"),
)

_ROUNDS = """
SELECT
    round,
    count(*) AS stages,
    list(stage ORDER BY stage) AS complete
FROM stages
GROUP BY round
"""


def columns_of(row_type: type[Row]) -> list[tuple[str, str, str]]:
    """Name, SQL type and description of every column of a row type's view, in order."""
    schema = schema_of(row_type)
    fields = [
        (field.name, sql_type(field.type), field.metadata[b"description"].decode())
        for field in (schema.field(name) for name in schema.names)
    ]
    if row_type is BankText:
        return fields
    place = {"round": "round of the directory it lies in", "stage": "stage that wrote it"}
    added = [(name, kind, place[name]) for name, kind, _ in _PLACE if name not in schema.names]
    return [*added, *fields, *((name, "VARCHAR", meaning) for name, _, meaning in _NOTED.get(row_type, ()))]


def sql_type(arrow: pa.DataType) -> str:
    """The DuckDB type of an Arrow type that the records use."""
    if pa.types.is_list(arrow):
        return f"{_SQL_TYPES[arrow.value_type]}[]"
    return _SQL_TYPES[arrow]


def view_bodies(run_path: Path, rounds: Sequence[int] | None = None) -> dict[str, str]:
    """The SELECT behind every view, by view name; a later one may refer to earlier ones.

    With `rounds` the views cover these only: what one round holds costs the same however many there are.
    """
    root = Path(os.path.abspath(run_path))  # noqa: PTH100 - resolve() would follow symbolic links
    names = [_ROUND_GLOB] if rounds is None else [f"{number:04d}" for number in rounds]
    places = [_STAGE_GLOB.format(round=name) for name in names]
    bodies = {
        row_type.table: _body(
            root, row_type, [_STAGE_GLOB.format(round=_ROUND_GLOB)] if row_type is BankChange else places
        )
        for row_type in ROW_TYPES
        if row_type not in _NOTED and row_type is not BankEntry
    }
    columns = ", ".join(f'changes."{name}"' for name in schema_of(BankEntry).names)
    bodies[BankEntry.table] = _BANK.format(columns=columns)
    manifests = _files(root, places, "manifest.json")
    if manifests is not None:
        columns = ",\n    ".join(
            f"CAST(TRY_CAST(content AS JSON) ->> '{place}' AS {kind}) AS {name}" for name, kind, place in _MANIFEST
        )
        bodies["stages"] = _STAGES.format(files=manifests, columns=columns)
    else:
        own = [(name, kind) for name, kind, _ in _MANIFEST]
        bodies["stages"] = _empty([("round", "BIGINT"), ("stage", "VARCHAR"), *own, ("manifest", "JSON")])
    bodies |= {row_type.table: _body(root, row_type, places) for row_type in _NOTED}  # they refer to `stages`
    bodies["rounds"] = _ROUNDS
    bodies["bank_text"] = _BANK_TEXT
    bodies["lineage"] = LINEAGE
    return bodies


def connect(run_path: Path, rounds: Sequence[int] | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views of a run (of some of its rounds). For the project's own queries; what users
    type goes through :func:`query`. Raises RecordDamaged for a file that no view can stand on."""
    connection = duckdb.connect()
    _create(connection, run_path, rounds)
    return connection


def connect_locked(run_path: Path) -> duckdb.DuckDBPyConnection:
    """As :func:`connect`, but the session can read nothing outside the run directory, loads no extension, and none of
    this can be switched off again. Use :func:`query` to keep it from writing too."""
    connection = connect(run_path)
    root = Path(os.path.abspath(run_path))  # noqa: PTH100
    # A glob is checked before it is expanded and the file after it: a path with glob characters needs both spellings.
    allowed = ", ".join(sorted({f"'{_quoted(str(root))}'", f"'{_escaped(root)}'"}))
    for statement in (
        f"SET allowed_directories = [{allowed}]",
        "SET autoinstall_known_extensions = false",
        "SET autoload_known_extensions = false",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)
    return connection


def query(
    run_path: Path, sql: str, parameters: Mapping[str, Any] | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of one SELECT over a run's views, in a locked session.

    Raises BadInput for anything that is not one query (COPY could write into the record) and for SQL that fails.
    """
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise _bad_sql(sql, error) from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise BadInput(
            f"only one SELECT can be run on a run directory, found {kinds}",
            expected="SELECT …, FROM …, WITH … SELECT …, SHOW TABLES, DESCRIBE view or SUMMARIZE view",
            next_step="send one SELECT at a time; to keep its result: --format csv > file",
        )
    with connect_locked(run_path) as connection:
        try:
            result = connection.execute(sql, dict(parameters) if parameters else None)
            names = [column[0] for column in result.description or ()]
            return names, result.fetchall()
        except duckdb.Error as error:
            raise _bad_sql(sql, error) from None


def write_catalog(run_path: Path) -> Path:
    """Write `catalog.duckdb` anew, beside the old one first, then over it. Returns its path.

    Its checksum is kept with those of the cache; where these tell of damage, the cache is cleared as well: both are
    derived. Raises RunDirectoryUnusable where the run directory cannot be written, RecordDamaged as :func:`connect`.
    """
    target = run_path / CATALOG
    scratch = temporary(target, token=0)
    try:
        scratch.unlink(missing_ok=True)
        with duckdb.connect(str(scratch)) as connection:
            _create(connection, run_path)
        scratch.replace(target)
        if any(fault.file != CATALOG for fault in cache.faults(run_path)):
            cache.clear(run_path)
        cache.seal(run_path, CATALOG)
    except (OSError, duckdb.IOException) as error:
        raise RunDirectoryUnusable(
            f"{target} cannot be written: {error}",
            expected="a run directory that this user may write",
            next_step=f'`crl sql {run_path} "…"` needs no catalog',
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    return target


@contextmanager
def reading(run_path: Path, rounds: Sequence[int] | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """:func:`connect` for the length of a block. Raises RecordDamaged where a file of the run cannot be read."""
    with connect(run_path, rounds) as connection:
        try:
            yield connection
        except duckdb.Error as error:
            raise _damaged(run_path, error) from error


def _create(connection: duckdb.DuckDBPyConnection, run_path: Path, rounds: Sequence[int] | None = None) -> None:
    for name, body in view_bodies(run_path, rounds).items():
        try:
            connection.execute(f'CREATE VIEW "{name}" AS {body}')
        except duckdb.Error as error:
            raise _damaged(run_path, error) from error


def _body(root: Path, row_type: type[Row], places: Sequence[str]) -> str:
    listed = columns_of(row_type)
    if row_type is BankText:
        # The same text may lie in several segments: a later snapshot is written without looking at older ones.
        if not any(root.glob(_SEGMENT_GLOB)):
            return _empty([(name, kind) for name, kind, _ in listed])
        return f"SELECT DISTINCT content_digest, text FROM read_parquet('{_escaped(root)}/{_SEGMENT_GLOB}')"
    files = _files(root, places, f"{row_type.table}.parquet")
    if files is None:
        return _empty([(name, kind) for name, kind, _ in listed])
    own = set(schema_of(row_type).names)
    place = {name: expression for name, _, expression in _PLACE}
    noted = {name: f"stages.manifest ->> '{where}'" for name, where, _ in _NOTED.get(row_type, ())}
    selected = ", ".join(
        f'"{name}"' if name in own else f"{place[name]} AS {name}" for name, _, _ in listed if name not in noted
    )
    body = f"SELECT {selected} FROM read_parquet({files}, filename = true)"
    if not noted:
        return body
    added = ", ".join(f"{expression} AS {name}" for name, expression in noted.items())
    return f"SELECT written.*, {added} FROM ({body}) AS written JOIN stages USING (round, stage)"


def _files(root: Path, places: Sequence[str], name: str) -> str | None:
    """The SQL list of glob patterns that find files of this name; None where there is none."""
    found = [f"'{_escaped(root)}/{place}/{name}'" for place in places if any(root.glob(f"{place}/{name}"))]
    return f"[{', '.join(found)}]" if found else None


def _empty(columns: Sequence[tuple[str, str]]) -> str:
    return "SELECT " + ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns) + " WHERE false"


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _escaped(path: Path) -> str:
    """A path inside a SQL string that DuckDB expands: glob characters of its own are taken literally."""
    return _quoted(re.sub(r"([*?\[])", r"[\1]", str(path)))


def _damaged(run_path: Path, error: duckdb.Error) -> RecordDamaged:
    return RecordDamaged(
        f"a file of the run cannot be read: {str(error).splitlines()[0]}",
        expected="Parquet files as their manifests say",
        where=str(run_path),
        next_step=f"`crl verify {run_path}` names the file and the command that mends it",
    )


def _bad_sql(sql: str, error: duckdb.Error) -> BadInput:
    return BadInput(
        f"the query failed: {error}",
        where=sql.strip()[:200],
        next_step='`SHOW TABLES` lists views, `DESCRIBE episodes` the columns of one; "group" and "order" need quotes',
    )
