"""Which files the views of a run read: those that are there now, each by its path, or patterns that find them.

:class:`Pinned` lists the run once. What a query then sees is one state, whatever is published meanwhile: the newest
round is listed first, so whatever a listed stage was made from is listed as well. :class:`Patterns` is for the catalog,
whose views find later rounds too; they read the directory again at every query. :class:`Tables` is for questions about
few rows of a long run: who knows which rounds hold the answer opens only these files, and of them only the columns and
row groups that are needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from crl.errors import RecordDamaged
from crl.limits import parse_json, read_limited
from crl.records import (
    ROW_TYPE_BY_TABLE,
    ROW_TYPES,
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    BankText,
    Row,
    schema_of,
)
from crl.run.cache import CACHE, cached
from crl.run.directory import round_numbers
from crl.run.experiment_file import check_format
from crl.run.files import mending
from crl.run.manifest import KEY, MANIFEST, Manifest
from crl.run.validations import VALIDATIONS

_SEGMENTS, _EMBEDDINGS = "bank/segments", "bank/embeddings"
VECTORS = "bank_vectors"
_OF_A_BANK = _BANK, _CHANGES, _SNAPSHOTS = tuple(
    f"{row_type.table}.parquet" for row_type in (BankEntry, BankChange, BankSnapshot)
)
# The stages that publish banks, and what each of them writes always.
_FIRST_BANK, _LATER_BANK = "initialize", "consolidate"
_ALWAYS_WRITTEN = _CHANGES, _SNAPSHOTS, f"{BankEvent.table}.parquet"
# A committed stage starts with a letter; what is being written starts with a dot.
_ROUND, _STAGE = re.compile(r"\d{4,15}"), re.compile(r"[a-z][a-z0-9_]*")
_FILE = re.compile(r"[\w-]+\.parquet|manifest\.json", re.ASCII)
_VERDICT = re.compile(r"\d{4,15}\.json", re.ASCII)
_ROUND_GLOB, _STAGE_GLOB = "[0-9]*", "[a-z]*"
# Begins as a round does and ends as the folders of the bank: the patterns of all find it. Names in these folders are
# digests: the patterns tell the tables without rows by letters that no digest has.
_EMPTY_KEY = "0 written by crl catalog RUN beside rounds and segments"
_EMPTY = f"{CACHE}/{_EMPTY_KEY}"
_NO_TEXT, _NO_VECTORS = "text.parquet", "vectors.parquet"
_OF_VECTORS = pa.schema([("content_digest", pa.string()), ("embedding", pa.list_(pa.float32()))])


class Pinned:
    """The files of a run as they are when this is made."""

    patterns = False
    """Whether there may be none of a kind, now or later."""

    def __init__(
        self, run_path: Path, rounds: Sequence[int] | None = None, until: int | None = None, *, banks: bool = True
    ) -> None:
        """`rounds` shows these only, `until` no later one. Without `banks` none is put together: other rounds than
        those shown are not even listed. Raises RecordDamaged for a link out of the run, OtherFormat."""
        check_format(run_path)
        self.root = absolute(run_path)
        last = max(rounds, default=-1) if rounds is not None else until
        shown = None if rounds is None else frozenset(rounds)
        self._shown: dict[str, list[str]] = {}
        self._every: dict[str, list[str]] = {}
        self._manifests: dict[str, dict[str, Any]] = {}
        self._texts: list[str] = []
        self._vectors: list[str] = []
        for name in sorted(self._names("rounds", _ROUND), key=int, reverse=True):
            if (last is not None and int(name) > last) or not (banks or shown is None or int(name) in shown):
                continue
            for stage in self._names(f"rounds/{name}", _STAGE):
                for file in self._names(f"rounds/{name}/{stage}", _FILE):
                    path = f"rounds/{name}/{stage}/{file}"
                    self._every.setdefault(file, []).append(path)
                    if shown is None or int(name) in shown:
                        self._shown.setdefault(file, []).append(path)
        self._verdicts = [
            f"{VALIDATIONS}/{file}"
            for file in sorted(self._names(VALIDATIONS, _VERDICT))
            if (shown is None or int(file[:-5]) in shown) and (last is None or int(file[:-5]) <= last)
        ]
        self.lost = frozenset(self._list_lost(shown))
        """Run-relative paths of files of the bank that should be there."""
        others = [file for file in self._every if file != MANIFEST and Path(file).stem not in ROW_TYPE_BY_TABLE]
        self.only_named(others)
        self.foreign = foreign_tables(self.root, (path for file in others for path in self._every[file]))
        """Tables of row types that are not the project's, and their columns: another package's recipe wrote them."""
        published = (path for path in self._shown.get(_SNAPSHOTS, []) if _publishes(path[7:].rpartition("/")[0]))
        self.latest = max(map(_round_of, published), default=None)
        """The newest round whose bank is published; None before the first."""

    def keep(self, views: Collection[str], *, without_lost: bool = False) -> None:
        """From now on only the files that these views (`view_sql.views_behind`) are read from: others may be damaged.

        `without_lost`: and of these only those that are there. A bank that is put together is another one then.
        Raises as :meth:`only_named`.
        """
        names = {MANIFEST if view == "stages" else f"{view}.parquet" for view in views}
        gone = self.lost if without_lost else frozenset[str]()
        for listed in (self._shown, self._every):
            for name, paths in list(listed.items()):
                listed[name] = [path for path in paths if name in names and path not in gone]
        self._texts = [path for path in self._texts if BankText.table in views and path not in gone]
        self._vectors = [path for path in self._vectors if VECTORS in views and path not in gone]
        self._verdicts = self._verdicts if VALIDATIONS in views else []
        self.only_named()

    def only_named(self, files: Iterable[str] | None = None) -> None:
        """Leave out files (all, or those of these names) that their stage did not write: what lies beside the record is
        no part of it. Raises RecordDamaged where a manifest cannot be read: nothing vouches for its files then."""
        for file in list(self._every) if files is None else files:
            for listed in (self._every, self._shown) if file != MANIFEST else ():
                listed[file] = [path for path in listed.get(file, ()) if path in self.lost or self._is_named(path)]

    def _is_named(self, path: str) -> bool:
        stage, _, file = path.rpartition("/")
        named = self._digested(stage).get("files")
        if not isinstance(named, dict):
            raise RecordDamaged(
                f"{stage}/{MANIFEST} cannot be read: nothing says which files of the stage are the record's",
                expected="the manifest that was committed with the stage",
                where=str(self.root / stage),
                next_step=mending(self.root),
            )
        return file in named

    def files(self, name: str, *, every_round: bool = False) -> str | None:
        """The SQL list of the files of this name; None where there is none and never will be.

        `every_round`: also of rounds that are not shown but come before: a bank is put together from these.
        """
        return self._listed((self._every if every_round else self._shown).get(name, []))

    def segments(self) -> str | None:
        """The SQL list of the bank's texts."""
        return self._listed(self._texts)

    def vectors(self) -> str | None:
        """The SQL list of the embeddings of the bank's texts."""
        return self._listed(self._vectors)

    def verdicts(self) -> str | None:
        """The SQL list of what Great Expectations found in rounds."""
        return self._listed(self._verdicts)

    def paths(self) -> list[str]:
        """Every file: each as it is opened and as it is named in SQL."""
        listed = [path for paths in self._every.values() for path in paths]
        listed += [*self._texts, *self._vectors, *self._verdicts]
        roots = dict.fromkeys((str(self.root), _literal(str(self.root))))
        return [f"{root}/{path}" for root in roots for path in listed]

    def tables(self) -> str | None:
        """The SQL list of every Parquet file; None where there is none."""
        listed = [path for paths in self._every.values() for path in paths if path.endswith(".parquet")]
        return self._listed([*listed, *self._texts, *self._vectors])

    def _list_lost(self, shown: frozenset[int] | None) -> list[str]:
        """What the stages that publish banks wrote and what is gone. It is listed all the same: reading it fails,
        where the bank would otherwise be another one without a word. Texts are listed here alone, as they are named."""
        listed = {path for paths in self._every.values() for path in paths}
        stages = {path.rpartition("/")[0] for name in _OF_A_BANK for path in self._every.get(name, [])}
        committed = {path.rpartition("/")[0] for path in self._every.get(MANIFEST, [])}
        due, due_texts, due_vectors, read = set[str](), set[str](), set[str](), set[str]()
        for stage in stages | {stage for stage in committed if _publishes(stage.partition("/")[2])}:
            digested = self._digested(stage)
            if stage not in stages and not any(file in digested.get("files", {}) for file in _OF_A_BANK):
                continue  # of a run without a bank
            stages.add(stage)
            due |= {f"{stage}/{file}" for file in digested.get("files", {}) if _FILE.fullmatch(file)}
            due_texts |= {path for path in digested.get("shared", {}) if _is_in(_SEGMENTS, path)}
            due_vectors |= {path for path in digested.get("shared", {}) if _is_in(_EMBEDDINGS, path)}
            read |= {f"rounds/{key}" for key in digested.get("inputs", {}) if _publishes(key)}
        for stage in _between(stages | read) - stages:
            due |= {f"{stage}/{file}" for file in _ALWAYS_WRITTEN}
        lost = sorted(due - listed)
        for path in lost:
            file = path.rpartition("/")[2]
            self._every.setdefault(file, []).append(path)
            if shown is None or _round_of(path) in shown:
                self._shown.setdefault(file, []).append(path)
        # Texts are written before the stage that names them: of the stages listed, all are there.
        self._texts, self._vectors = sorted(due_texts), sorted(due_vectors)
        present = {f"{folder}/{file}" for folder in (_SEGMENTS, _EMBEDDINGS) for file in self._names(folder, _FILE)}
        return [*lost, *sorted((due_texts | due_vectors) - present)]

    def _digested(self, stage: str) -> dict[str, Any]:
        """What the manifest of a stage vouches for; nothing where it cannot be read: `crl verify` names that."""
        if stage not in self._manifests:
            self._manifests[stage] = digested_in(self.root / stage)
        return self._manifests[stage]

    def _listed(self, paths: Sequence[str]) -> str | None:
        # Names inside a run need no escaping: others are not listed.
        root = quoted(str(self.root))[:-1]
        return "[" + ", ".join([f"{root}/{path}'" for path in paths]) + "]" if paths else None

    def _names(self, directory: str, wanted: re.Pattern[str]) -> list[str]:
        """Names in a directory of the run that are what they should be."""
        found = []
        try:
            with os.scandir(self.root / directory) as entries:
                for entry in entries:
                    if wanted.fullmatch(entry.name):
                        found.append(entry.name)
                        if entry.is_symlink():
                            self._check_inside(Path(entry.path))
                        elif wanted in (_FILE, _VERDICT) and not entry.is_file():
                            raise RecordDamaged(
                                f"{directory}/{entry.name} is a folder, a pipe or a device, and no file",
                                expected="the file that was committed",
                                where=str(self.root),
                                next_step=mending(self.root),
                            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        return found

    def _check_inside(self, link: Path) -> None:
        if not link.resolve().is_relative_to(self.root.resolve()):
            raise RecordDamaged(
                f"{link} is a link that leads out of the run",
                expected="files of the run itself",
                where=str(self.root),
                next_step="replace the link with what it points to, or remove it",
            )


def digested_in(stage: Path) -> dict[str, Any]:
    """The digest section of a stage's manifest as it is written, unchecked; empty where it cannot be read."""
    try:
        found = parse_json(read_limited(stage / MANIFEST))["digested"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: named if isinstance(named := found.get(name), dict) else {} for name in ("files", "shared", "inputs")}


def _is_in(folder: str, path: str) -> bool:
    """Whether a path that a manifest names is that of a file in a folder: it goes into SQL as it is."""
    return path.startswith(f"{folder}/") and _FILE.fullmatch(path[len(folder) + 1 :]) is not None


class Patterns:
    """Patterns that find the files of a run, those of later rounds too.

    In DuckDB 1.x a pattern of `read_parquet` has to find a file. So the cache holds a table of every kind without rows,
    and the patterns find it as well. It is also named by itself, first: it decides about columns and types, and where
    the run was moved, or its cache deleted, the name of its folder says in DuckDB's error what to do.
    """

    patterns = True

    def __init__(self, run_path: Path) -> None:
        """Writes the tables without rows. Raises OtherFormat, and as :func:`crl.run.cache.cached`."""
        check_format(run_path)
        self.root = absolute(run_path)
        others = (
            path
            for path in self.root.glob(f"rounds/{_ROUND_GLOB}/{_STAGE_GLOB}/*.parquet")
            if _FILE.fullmatch(path.name) and path.stem not in ROW_TYPE_BY_TABLE
        )
        named = (path for path in others if path.name in digested_in(path.parent).get("files", ()))
        self.foreign = foreign_tables(self.root, (str(path.relative_to(self.root)) for path in named))
        _write_empty(run_path, {row_type.table: schema_of(row_type) for row_type in ROW_TYPES} | self.foreign)

    def files(self, name: str, *, every_round: bool = False) -> str | None:
        """See :class:`Pinned`."""
        if name == MANIFEST:
            return self._listed(f"rounds/{_ROUND_GLOB}/{_STAGE_GLOB}/{name}")
        return self._listed(f"{_EMPTY}/none/{name}", f"[cr]*/{_ROUND_GLOB}/{_STAGE_GLOB}/{name}")

    def segments(self) -> str | None:
        """See :class:`Pinned`."""
        return self._listed(f"{_EMPTY}/{_NO_TEXT}", "[bc]*/*segments/*[!s].parquet")

    def vectors(self) -> str | None:
        """See :class:`Pinned`."""
        return self._listed(f"{_EMPTY}/{_NO_VECTORS}", "[bc]*/[e0]*s/[!t]*.parquet")

    def verdicts(self) -> str | None:
        """See :class:`Pinned`."""
        return self._listed(f"{VALIDATIONS}/{_ROUND_GLOB}.json")

    def _listed(self, *relative: str) -> str:
        root = quoted(str(self.root))[:-1]
        return "[" + ", ".join(f"{root}/{each}'" for each in relative) + "]"


def _write_empty(run_path: Path, schemas: Mapping[str, pa.Schema]) -> None:
    """Have the cache hold a table without rows of each of these schemas, for :class:`Patterns`."""
    content = {f"none/{table}.parquet": _without_rows(schema) for table, schema in schemas.items()}
    content[_NO_TEXT] = content.pop(f"none/{BankText.table}.parquet")
    content[_NO_VECTORS] = _without_rows(_OF_VECTORS)

    def build(directory: Path) -> None:
        (directory / "none").mkdir()
        for name, file in content.items():
            (directory / name).write_bytes(file)

    def holds(name: str, file: bytes) -> bool:
        path = run_path / _EMPTY / name
        return path.is_file() and path.read_bytes() == file

    cached(run_path, _EMPTY_KEY, build, again=not all(holds(name, file) for name, file in content.items()))


def _without_rows(schema: pa.Schema) -> bytes:
    """A Parquet file of no rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return bytes(sink.getvalue())


Source = Pinned | Patterns
"""Files by name, as SQL."""


class Tables:
    """The committed tables of a run, as they are when this is made. A context manager; nothing is written."""

    def __init__(self, run_path: Path, until: int | None = None) -> None:
        """Of the rounds up to `until` only, where that is given. Raises OtherFormat."""
        self.run_path = Path(run_path)
        check_format(self.run_path)
        self._connection = duckdb.connect()
        self._files: dict[str, list[tuple[int, str]]] = {}
        self._named: dict[Path, Collection[str]] = {}
        for number in round_numbers(self.run_path):
            if until is None or number <= until:
                # What an attempt has not committed starts with a dot.
                for path in sorted((self.run_path / "rounds" / f"{number:04d}").glob("[!.]*/*.parquet")):
                    self._files.setdefault(path.name, []).append((number, str(path)))

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rounds(self, row_type: type[Row]) -> list[int]:
        """Rounds that hold rows of a type, in order."""
        return list(dict.fromkeys(number for number, _ in self._listed(row_type)))

    def select(
        self,
        row_type: type[Row],
        columns: Sequence[str],
        *,
        among: Mapping[str, Iterable[str]] | None = None,
        where: str = "true",
        rounds: Iterable[int] | None = None,
    ) -> list[dict[str, Any]]:
        """Rows as dictionaries of `columns`, in the order of rounds.

        Args:
            among: values that a column may have, by column; of a list, values of which it must hold one. No row is read
                where a column may have none.
            where: a condition in SQL.
            rounds: the rounds to look at; None for all.

        Raises RecordDamaged where a file cannot be read.
        """
        wanted = None if rounds is None else set(rounds)
        files = [file for number, file in self._listed(row_type) if wanted is None or number in wanted]
        values = {name: list(dict.fromkeys(listed)) for name, listed in (among or {}).items()}
        if not files or not all(values.values()):
            return []
        conditions = [f"({where})"]
        for name, listed in values.items():
            # A relation and not a list of constants: there may be as many as a bank has entries.
            self._connection.register(f"among_{name}", pa.table({"value": pa.array(listed, pa.string())}))
            if pa.types.is_list(schema_of(row_type).field(name).type):
                conditions.append(f'list_has_any("{name}", (SELECT list(value) FROM among_{name}))')
            else:
                conditions.append(f'"{name}" IN (SELECT value FROM among_{name})')
        selected = ", ".join(f'"{name}"' for name in columns)
        # DuckDB keeps no order of itself where `among` holds more values than there are rows.
        order = "ORDER BY file_index, file_row_number"
        read = "read_parquet($files, hive_partitioning = false)"  # a folder `round=7` says nothing about rows
        if row_type.added:
            present = {name for file in files for name in pq.read_schema(file).names}
            kinds = {name: sql_type(schema_of(row_type).field(name).type) for name in row_type.added}
            none = "".join(f", NULL::{kind} AS {name}" for name, kind in kinds.items() if name not in present)
            read = f"(SELECT *{none}, file_index, file_row_number FROM {read[:-1]}, union_by_name = true))"
        sql = f"SELECT {selected} FROM {read} WHERE {' AND '.join(conditions)} {order}"
        try:
            rows = self._connection.execute(sql, {"files": [_literal(file) for file in files]}).fetchall()
        except duckdb.Error as error:
            raise RecordDamaged(
                f"table {row_type.table} cannot be read: {str(error).splitlines()[0]}",
                expected="Parquet files as their manifests say",
                where=str(self.run_path),
                next_step=mending(self.run_path),
            ) from error
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _listed(self, row_type: type[Row]) -> list[tuple[int, str]]:
        """What stages wrote of a type; a file that only lies beside theirs is none of it."""
        return [each for each in self._files.get(f"{row_type.table}.parquet", []) if self._is_named(Path(each[1]))]

    def _is_named(self, path: Path) -> bool:
        if path.parent not in self._named:
            self._named[path.parent] = Manifest.load(path.parent).digested.files
        return path.name in self._named[path.parent]


def foreign_tables(root: Path, paths: Iterable[str]) -> dict[str, pa.Schema]:
    """Columns by table, of those of these Parquet files whose row type is not the project's."""
    found: dict[str, pa.Schema] = {}
    for path in paths:
        table, _, kind = path.rpartition("/")[2].partition(".")
        if kind == "parquet" and table not in ROW_TYPE_BY_TABLE and table not in found:
            try:
                found[table] = pq.read_schema(root / path)
            except (OSError, pa.ArrowInvalid):  # damaged: reading it says so, `crl verify` names it
                continue
    return found


def absolute(path: Path) -> Path:
    """The path from the root directory, with its symbolic links as they are."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow them


def quoted(path: str) -> str:
    """A path as an SQL string that DuckDB takes literally."""
    return "'" + _literal(path).replace("'", "''") + "'"


_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.int8(): "TINYINT",
    pa.float64(): "DOUBLE",
    pa.float32(): "FLOAT",
    pa.bool_(): "BOOLEAN",
}


def sql_type(arrow: pa.DataType) -> str:
    """The DuckDB type of an Arrow type that the records use."""
    if pa.types.is_list(arrow):
        return f"{sql_type(arrow.value_type)}[]"
    return _SQL_TYPES.get(arrow, "VARCHAR")  # another's file may have columns of any type


def _literal(path: str) -> str:
    """A path that DuckDB does not expand."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def _round_of(path: str) -> int:
    return int(path.split("/")[1])


def _publishes(key: str) -> bool:
    """Whether a key of a manifest's `inputs`, such as `0007/consolidate`, names a stage that publishes a bank."""
    return KEY.fullmatch(key) is not None and key.partition("/")[2] in (_FIRST_BANK, _LATER_BANK)


def _between(stages: Collection[str]) -> set[str]:
    """The stages that publish banks from the first to the last round of these."""
    rounds = {_round_of(stage) for stage in stages}
    return {
        f"rounds/{number:04d}/{_LATER_BANK if number else _FIRST_BANK}"
        for number in range(min(rounds, default=0), max(rounds, default=-1) + 1)
    }
