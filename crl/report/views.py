"""SQL views over the Parquet files of a run directory.

One view per row type of `crl/records/`, over every round and stage that wrote it, plus:

- `bank`: the bank after every round, put together from `bank_changes`; `bank_text`: the same with the texts;
- `approvals`: the rows of that type with the time of the decision, which is in the stage's manifest;
- `stages`: one row per committed stage, from its manifest; `rounds`: one row per round;
- `sequences`: one row per sequence of an episode, with its tokens and turns;
- `success_by_condition`: success of each round and condition, with its interval, actions and tokens per game;
- `success_by_task`: the same by task family;
- `broken_games`: games that broke, by kind, with the first traceback, from the manifests;
- `timings`: how long retrieval, answers and playing took, from the manifests;
- `validations`: what Great Expectations found in the tables of committed rounds, from `validations/`;
- `lineage`: one row per use of an experience, with all that led to it;
- `pass_at_k`: pass@k of held-out tasks that were played several times;
- the table macros `bank_at(round)` and `bank_diff(earlier, later)`, and those of intervals (`view_sql.SCALARS`).

:func:`connect` and :func:`query` list the run once: everything in a session is one state of it, whatever is published
meanwhile, and `latest_round()` is the newest round whose bank was published then. The Parquet files are the truth:
`catalog.duckdb` (:func:`write_catalog`) holds definitions only, with absolute paths so that a DuckDB client can open it
from anywhere, in the storage format and the SQL of DuckDB 1.0. Its views read the directory again at every query, so
they show rounds published after it was written; such a client resolves a round first and names it then (docs/sql.md).
Copied or moved, it refuses to answer from the place it was written for: `crl catalog RUN` rewrites it.

Which files belong to a view is in `view_files.py`, the SQL in `view_sql.py`, what users type is kept in by `locked.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from crl.bank.segments import EMBEDDINGS, SEGMENTS
from crl.errors import BadInput, CrlError, RecordDamaged
from crl.paths import quoted
from crl.records import BankText
from crl.report.locked import bad_sql, check, interruptible, lock
from crl.report.view_files import VECTORS, Patterns, Pinned, Source
from crl.report.view_sql import (
    MACROS,
    MARKED,
    SCALARS,
    columns_of,
    folder_sql,
    identifier,
    macro_bodies,
    view_bodies,
    views_behind,
)  # fmt: skip
from crl.run import cache
from crl.run.directory import round_numbers
from crl.run.files import disk_error, mending, remove, temporary, unwritable

__all__ = ["CATALOG", "columns_of", "connect", "query", "reading", "relation", "write_catalog"]

CATALOG = "catalog.duckdb"
_OLDEST_CLIENT = "v1.0.0"
_BATCH = 1000
"""Rows that are objects at a time."""


def connect(
    run_path: Path, rounds: Sequence[int] | None = None, *, until: int | None = None
) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the views of a run as it is now: of some `rounds`, or as it was after round `until`.

    With `rounds`, rows of others are read only where a bank is put together from them. Nothing of the run is written or
    locked.
    What users type goes through :func:`query`. Raises BadInput for a round that the run does not have, RecordDamaged
    for a file that no view can read.
    """
    _check_rounds(run_path, [*(rounds or ()), *(() if until is None else (until,))])
    files = Pinned(run_path, rounds, until)
    files.only_named()
    return _open(run_path, files, until)


def query(
    run_path: Path, sql: str, parameters: Mapping[str, Any] | None = None, *, until: int | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of one SELECT over a run's views (as it was after round `until`), in a locked session of
    this process. What people type runs in one of its own: `crl.report.asked`.

    Raises BadInput for anything that is not one query, for what would look outside the run, for SQL that fails, and for
    a round that the run does not have; RecordDamaged as :func:`connect`.
    """
    with answering([run_path], sql, parameters, until=until) as (names, batches):
        return names, [row for rows in batches for row in rows]


@contextmanager
def answering(
    runs: Sequence[Path],
    sql: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    until: int | None = None,
    memory: int | None = None,
) -> Iterator[tuple[list[str], Iterator[list[tuple[Any, ...]]]]]:
    """Column names of one SELECT, and its rows as they come, in lists. Of several runs every view begins with a column
    `run`. `memory`: bytes that DuckDB may take. Errors as for :func:`query`, also while rows are read."""
    connection, files = _locked(runs, sql, until, memory)
    with connection, _explained(runs, files, sql):
        result = interruptible(connection, lambda: connection.execute(sql, dict(parameters) if parameters else None))

        def batches() -> Iterator[list[tuple[Any, ...]]]:
            while rows := interruptible(connection, lambda: result.fetchmany(_BATCH)):
                yield rows

        yield [column[0] for column in result.description or ()], batches()


def relation(
    run_path: Path, sql: str, parameters: Mapping[str, Any] | None = None, *, until: int | None = None
) -> duckdb.DuckDBPyRelation:
    """One SELECT over a run's views as a relation: it runs when its rows are asked for, in a locked session of its own.

    With `parameters` DuckDB runs it at once. Raises as :func:`query`; the files that it reads are opened here, so a
    file that is no Parquet file any more is RecordDamaged here and not an error of DuckDB later.
    """
    connection, files = _locked([run_path], sql, until)
    with _explained([run_path], files, sql):
        if (tables := files[0].tables()) is not None:
            connection.execute(f"SELECT count(*) FROM parquet_file_metadata({tables})").fetchall()
        return connection.sql(sql, params=dict(parameters) if parameters else None)


def write_catalog(run_path: Path) -> Path:
    """Rewrite `catalog.duckdb`: beside the old one first, then over it. Returns its path.

    Its checksum is kept with those of the cache; what of the cache is damaged is deleted as well: both are
    derived. Raises RunDirectoryUnusable where the run directory cannot be written, DiskFull, RecordDamaged as
    :func:`connect`.
    """
    target = run_path / CATALOG
    scratch = temporary(target, token=0)
    try:
        # DuckDB makes it elsewhere: it writes more than one file, and writes none below a folder with a "?".
        with TemporaryDirectory() as folder:
            made = Path(folder) / CATALOG
            with duckdb.connect(str(made), config={"storage_compatibility_version": _OLDEST_CLIENT}) as connection:
                files = Patterns(run_path)
                connection.begin()  # or every definition would be written to the disk by itself, and waited for
                _create(connection, run_path, files)
                connection.execute(f"COMMENT ON VIEW {MARKED} IS {folder_sql(files)}")
                connection.commit()
                connection.execute("CHECKPOINT")  # closing does it as well, and says nothing where the disk is full
            shutil.copyfile(made, scratch)
        cache.discard_damaged(run_path)
        cache.seal(run_path, CATALOG, scratch)
        scratch.replace(target)
    except (OSError, duckdb.Error) as error:
        raise unwritable(error, target, CATALOG) from error
    finally:
        remove(scratch)
    return target


@contextmanager
def reading(
    run_path: Path, rounds: Sequence[int] | None = None, *, views: Collection[str] | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """:func:`connect` for the length of a block. Raises RecordDamaged where a file of the run cannot be read.

    `views`: only these are needed, for metrics of single rounds: the others have no rows, and of the bank's files those
    that are gone are left out, so no bank may be put together. Reading some `rounds` then costs the same however many
    there are.
    """
    files = Pinned(run_path, rounds, banks=views is None)
    if views is not None:
        files.keep(views, without_lost=True)
    with _open(run_path, files, None) as connection:
        try:
            yield connection
        except duckdb.Error as error:
            raise _damaged(run_path, error) from error


def _locked(
    runs: Sequence[Path], sql: str, until: int | None, memory: int | None = None
) -> tuple[duckdb.DuckDBPyConnection, list[Pinned]]:
    """A session in which this one SELECT can run, and the files that it may open. Raises as :func:`query`."""
    listed = []
    for run_path in runs:
        _check_rounds(run_path, () if until is None else (until,))
        files = Pinned(run_path, until=until)
        views = views_behind(sql, files.foreign)
        for lost in files.lost:
            folder, stored = lost.rpartition("/")[0], {EMBEDDINGS: VECTORS, SEGMENTS: BankText.table}
            if stored.get(folder, Path(lost).stem) in views:
                raise RecordDamaged(
                    f"{lost} is gone: the bank cannot be put together without it",
                    expected="every file of the banks that were published",
                    where=str(run_path),
                    next_step=f"`crl mend {quoted(run_path)}` makes it again; `--round N` shows what was before",
                )
        files.keep(views)
        listed.append(files)
    if len(runs) == 1:
        connection = _open(runs[0], listed[0], until)
    else:
        connection = _open_side_by_side(runs, listed, until)
    check(connection, sql)
    if memory is not None:
        connection.execute(f"SET memory_limit = '{memory // 10**6} MB'")
    lock(connection, [path for files in listed for path in files.paths()])
    return connection, listed


@contextmanager
def _explained(runs: Sequence[Path], listed: Sequence[Pinned], sql: str) -> Iterator[None]:
    """Errors of DuckDB as ours: RecordDamaged for a file of a run, BadInput for the query."""
    try:
        yield
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        for run_path, files in zip(runs, listed, strict=True):
            if f"{files.root}/" in str(error):  # one of the run's own files: those of the query are refused
                raise _damaged(run_path, error) from None
        raise bad_sql(sql, error) from None
    except duckdb.Error as error:
        raise bad_sql(sql, error) from None


def _check_rounds(run_path: Path, rounds: Sequence[int]) -> None:
    """Raise BadInput for a round that the run does not have, naming those there are."""
    known = round_numbers(run_path)
    for number in rounds:
        if number not in known:
            raise BadInput(
                f"{run_path} has no round {number}",
                expected=f"a round from {known[0]} to {known[-1]}" if known else "a run with a round",
                next_step="leave --round out for the run as it is now",
            )


def _open(run_path: Path, files: Pinned, until: int | None) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    _create(connection, run_path, files, earlier=until is not None)
    latest = "NULL" if files.latest is None else str(files.latest)
    connection.execute(f"CREATE MACRO latest_round() AS {latest}::BIGINT")
    return connection


def _open_side_by_side(runs: Sequence[Path], listed: Sequence[Pinned], until: int | None) -> duckdb.DuckDBPyConnection:
    """A database with the views of several runs in one: each has a schema of its own, and over all of them every view
    is their rows with the name of the run. Raises BadInput where two runs have one name."""
    names = [path.absolute().name for path in runs]
    if len(set(names)) < len(names):
        raise BadInput(
            f"two of the runs have the name {max(names, key=names.count)!r}: the column `run` would be the same",
            expected="runs with different names",
            next_step="name each run once; a copy can be reached by a link with another name",
        )
    connection = duckdb.connect()
    schemas: dict[str, list[str]] = {}
    for number, (run_path, files) in enumerate(zip(runs, listed, strict=True)):
        connection.execute(f'CREATE SCHEMA "run {number}"')
        connection.execute(f'USE memory."run {number}"')
        _create(connection, run_path, files, earlier=until is not None)
        for name in view_bodies(files):
            schemas.setdefault(name, []).append(f"SELECT '{_sql(names[number])}' AS run, * FROM \"run {number}\".")
    connection.execute("USE memory.main")
    for signature, body in SCALARS.items():
        connection.execute(f"CREATE MACRO {signature} AS {body}")
    for name, parts in schemas.items():
        body = " UNION ALL BY NAME ".join(part + identifier(name) for part in parts)
        connection.execute(f"CREATE VIEW {identifier(name)} AS {body}")
    # A run without any bank has no rows to add. Where none has one, all are asked, and say so.
    newest = [files.latest for files in listed if files.latest is not None]
    with_bank = [
        part for part, files in zip(schemas["bank"], listed, strict=True) if files.latest is not None or not newest
    ]
    for signature in MACROS:
        if not signature.startswith("has_bank"):
            body = " UNION ALL BY NAME ".join(part + signature for part in with_bank)
            connection.execute(f"CREATE MACRO {signature} AS TABLE {body}")
    latest = min(newest, default="NULL")
    connection.execute(f"CREATE MACRO latest_round() AS {latest}::BIGINT")
    return connection


def _sql(text: str) -> str:
    return text.replace("'", "''")


def _create(connection: duckdb.DuckDBPyConnection, run_path: Path, source: Source, *, earlier: bool = False) -> None:
    try:
        for signature, body in SCALARS.items():
            connection.execute(f"CREATE MACRO {signature} AS {body}")
        bodies = view_bodies(source, earlier=earlier)
        for name, body in bodies.items():
            connection.execute(f"CREATE VIEW {identifier(name)} AS {body}")
        for signature, body in macro_bodies(bodies).items():
            connection.execute(f"CREATE MACRO {signature} AS {body}")
    except duckdb.Error as error:
        raise _damaged(run_path, error) from error


def _damaged(run_path: Path, error: duckdb.Error) -> CrlError:
    return disk_error(error, run_path) or RecordDamaged(
        f"a file of the run cannot be read: {str(error).splitlines()[0]}",
        expected="Parquet files as their manifests say",
        where=str(run_path),
        next_step=mending(run_path),
    )
