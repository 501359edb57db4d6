"""What a running stage sees: its method and round, the rows it declared, a writer, seeds, services, progress."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crl.bank.changes import TableOf, open_snapshot
from crl.bank.snapshot import Snapshot
from crl.config import Method
from crl.errors import CrlError, EnvironmentBroken, RecordDamaged
from crl.faults import Fault, attempt
from crl.protocols import Environment, Services
from crl.records import (
    SERVER,
    TRAINER,
    BehaviorLogprobs,
    Generation,
    Metric,
    Row,
    rows_of,
    rows_with,
    schema_of,
    table_of,
)
from crl.rounds.bank_tables import tables_of
from crl.rounds.provenance import Game, add_games, add_time, require_games
from crl.rounds.stage import R, Recipe, Stage
from crl.run.manifest import Manifest, key_of
from crl.run.seeds import seed_for
from crl.text.unicode import valid_text, with_texts

Progress = Callable[[dict[str, Any]], None]
BANK, NEW_BANK = "bank", "new_bank"
"""Names of the reads of the bank that a stage works with, and of the one that its round published."""


class Writer(Protocol):
    """The part of the record's stage writer that a stage may use."""

    @property
    def directory(self) -> Path: ...

    def write(self, row_type: type[Row], table: pa.Table) -> None: ...

    def share(self, relative: str, content: bytes) -> None: ...


class Reader(Protocol):
    """The part of the run directory that a stage may use."""

    @property
    def path(self) -> Path: ...

    def read(self, round_number: int, stage: str, row_type: type[Row]) -> pa.Table: ...


class StageContext:
    """Handed to `Stage.run`. Every read is remembered: the manifest lists the digests of what was read."""

    def __init__(
        self,
        *,
        method: Method,
        recipe: Recipe,
        stage: Stage,
        round_number: int,
        reader: Reader,
        writer: Writer,
        services: Services,
        progress: Progress,
        conditions: frozenset[str] | None = None,
        families: frozenset[str] | None = None,
        unfinished: Path | None = None,
        broken_episodes_limit: float = 0.9,
    ) -> None:
        self.method, self.recipe, self.stage, self.round = method, recipe, stage, round_number
        self.services = services
        self.conditions, self.families = conditions, families
        """Conditions and task families of an evaluation that are wanted, where a person evaluates a round again; None:
        all of them."""
        self.unfinished = unfinished
        """Folder whose files outlive an attempt that ends early and go when the stage is committed; None: there is
        none. What is in it may save work and nothing else."""
        self._broken_limit = broken_episodes_limit
        self._reader, self._writer, self._progress = reader, writer, progress
        self.inputs: set[tuple[int, str]] = set()
        self._bank_rows: dict[tuple[int, str, type[Row]], pa.Table] = {}
        self.provenance: dict[str, Any] = {}
        """What the stage wants in its manifest beside the digest: what rows may not hold, such as times."""

    @property
    def run_path(self) -> Path:
        """The run directory."""
        return self._reader.path

    @property
    def directory(self) -> Path:
        """Where the stage may put files of its own (a checkpoint); they are digested with it."""
        return self._writer.directory

    def environment(self, family: str) -> Environment:
        """The environment of a task family, as it is in this round. Raises EnvironmentBroken where there is none."""
        made = attempt(lambda: self.services.environment(family, self.round))
        if isinstance(made, Fault):
            if isinstance(made.error, CrlError):
                raise made.error
            raise EnvironmentBroken(
                f"the environment cannot be made: {made.code}\n{made.details}",
                where=f"environment of family {family}",
                next_step=EnvironmentBroken.ADVICE,
            ) from made.error
        return made

    def rows(self, row_type: type[R], name: str) -> list[R]:
        """Rows of a declared read, by its name; none where that round has no such stage. Undeclared reads are
        refused."""
        return rows_of(row_type, self.table(row_type, name))

    def table(self, row_type: type[Row], name: str) -> pa.Table:
        """As :meth:`rows`, as an Arrow table: for a few columns of many rows."""
        read = self.stage.read(name)
        return self._joined(row_type, self.recipe.read_keys(self.method, self.round, self.stage, read))

    def _joined(self, row_type: type[Row], places: Sequence[tuple[int, str]]) -> pa.Table:
        self.inputs.update(places)
        tables = [self._reader.read(*place, row_type) for place in places]
        if row_type is Generation:
            tables = [self._behaved(*place, table) for place, table in zip(places, tables, strict=True)]
        return pa.concat_tables(tables) if tables else schema_of(row_type).empty_table()

    def _behaved(self, round_number: int, stage: str, generations: pa.Table) -> pa.Table:
        """Token records with their behavior log-probabilities. Of its own round a stage has those that it declares."""
        if not pc.any(pc.equal(generations["logprobs_by"], SERVER)).as_py():
            return generations
        names = self.recipe.behavior_stages(self.method, round_number, stage)
        if round_number == self.round:
            names = [name for name in names if any((each.stage, each.offset) == (name, 0) for each in self.stage.reads)]
        if not names:
            return generations
        self.inputs.update((round_number, name) for name in names)
        return behaved(generations, [self._reader.read(round_number, name, BehaviorLogprobs) for name in names])

    def metrics(self, name: str) -> dict[str, float]:
        """Metrics that a declared read recorded, by their names."""
        rows = self.table(Metric, name)
        return dict(zip(rows["name"].to_pylist(), rows["value"].to_pylist(), strict=True))

    def bank(self, name: str = BANK) -> Snapshot:
        """The bank of a declared read; an empty one where there was none."""
        round_number, table_of = self.bank_tables(name)
        return Snapshot.of(self.round, []) if round_number is None else open_snapshot(round_number, table_of)

    def bank_tables(self, name: str = BANK) -> tuple[int | None, TableOf]:
        """The round of that bank (None: there was none) and the tables it is put together from.

        The stage that published it is remembered as read: its digest vouches for the rounds before it.
        """
        place = self._resolve(name)
        if place is not None:
            self.inputs.add(place)
        return None if place is None else place[0], tables_of(self.recipe, self.method, self._read_once)

    def _read_once(self, round_number: int, stage: str, row_type: type[Row]) -> pa.Table:
        # A stage asks for a bank and for where its texts are: of a million entries the file would be read twice.
        key = (round_number, stage, row_type)
        if key not in self._bank_rows:
            self._bank_rows[key] = _held(self._reader, *key)
        return self._bank_rows[key]

    def rows_at(self, row_type: type[R], round_number: int, stage: str) -> list[R]:
        """Rows of a stage of an exact earlier round, named by a row already read (a waiting extractor output)."""
        return rows_of(row_type, self.table_at(row_type, round_number, stage))

    def table_at(self, row_type: type[Row], round_number: int, stage: str) -> pa.Table:
        """As :meth:`rows_at`, as an Arrow table: for a few of many rows."""
        if row_type not in self.recipe.recalls:
            raise AssertionError(f"recipe {self.recipe.name} recalls {row_type.table} without declaring it")
        places = self.recipe.draws(self.method, round_number, stage)
        return self._joined(row_type, places or [(round_number, stage)])

    def generations_at(self, names: Iterable[tuple[int, str, str]]) -> dict[str, Generation]:
        """Token records of earlier rounds by their ids: of (round, stage, id) each, from the stage that wrote it."""
        wanted: dict[tuple[int, str], set[str]] = {}
        for number, stage, name in names:
            wanted.setdefault((number, stage), set()).add(name)
        return {
            row.generation_id: row
            for place, ids in sorted(wanted.items())
            for row in rows_of(Generation, rows_with(self.table_at(Generation, *place), "generation_id", ids))
        }

    def round_of(self, name: str) -> int:
        """The round that a declared read is of; 0 where it is before the first."""
        return max(0, self.round + self.stage.read(name).offset)

    def _resolve(self, name: str) -> tuple[int, str] | None:
        read = self.stage.read(name)
        return self.recipe.resolve(self.method, self.round, read.stage, read.offset)

    def digests(self) -> dict[str, str]:
        """Digest of every stage that was read so far, by `0007/distill`."""
        keys = [key_of(*place) for place in sorted(self.inputs)]
        return {key: Manifest.load(self.run_path / "rounds" / key).digest for key in keys}

    def write(self, row_type: type[R], rows: Iterable[R]) -> None:
        """Write the rows of one type; once per type. Whoever wrote its texts, they are made valid Unicode."""
        listed = list(rows)
        try:
            table = table_of(row_type, listed)
        except UnicodeEncodeError:
            table = table_of(row_type, [with_texts(row, valid_text) for row in listed])
        self._writer.write(row_type, table)

    def write_metrics(self, metrics: Mapping[str, float], alarms: Mapping[str, str | None] | None = None) -> None:
        """Write the metrics of the stage; `alarms` say by name what is wrong with one."""
        rows = [
            Metric(
                round=self.round, stage=self.stage.name, name=name, value=float(value), alarm=(alarms or {}).get(name)
            )
            for name, value in metrics.items()
        ]
        self.write(Metric, rows)

    def write_table(self, row_type: type[Row], table: pa.Table) -> None:
        """Write an Arrow table of a type as it is."""
        self._writer.write(row_type, table.cast(schema_of(row_type)))

    def share(self, relative: str, content: bytes) -> None:
        """Write a content-addressed file outside the stage (bank segments): written once, digested with the stage."""
        self._writer.share(relative, content)

    def seed(self, *parts: str | int) -> np.random.SeedSequence:
        """Seed of (experiment seed, round, stage, parts)."""
        return seed_for(self.method.seed, self.round, self.stage.name, *parts)

    @contextmanager
    def timed(self, work: str, items: int) -> Iterator[None]:
        """Note how long the block takes, as one batch of so many items: see `provenance.py`."""
        began = time.monotonic()
        yield
        add_time(self.provenance, work, items=items, seconds=time.monotonic() - began)

    def add_games(self, games: Iterable[Game]) -> None:
        """Count games that were played, or starts of games that a later stage plays (`provenance.py`)."""
        add_games(self.provenance, games, of=(self.round, self.stage.name))

    def require_games(self) -> None:
        """Raise EnvironmentBroken where too many of the games that were noted broke."""
        require_games(self.provenance, self._broken_limit, f"round {self.round}, stage {self.stage.name}")

    def progress(self, done: int, total: int, **metrics: Any) -> None:
        """Tell whoever watches; never part of the record."""
        self._progress({"done": done, "total": total, **metrics})


def behaved(generations: pa.Table, computed: Sequence[pa.Table]) -> pa.Table:
    """Token records with the log-probabilities that stages computed for them (:class:`BehaviorLogprobs`) in place of
    their server's; all others as they are."""
    rows = pa.concat_tables(computed)
    places = pc.index_in(generations["generation_id"], value_set=rows["generation_id"].combine_chunks())
    own, by = generations["logprobs"].combine_chunks(), generations["logprobs_by"]
    columns = {
        "logprobs": pc.coalesce(rows["logprobs"].combine_chunks().take(places.combine_chunks()), own),
        "logprobs_by": pc.if_else(pc.is_valid(places), TRAINER, by),
    }
    for name, column in columns.items():
        index = generations.schema.get_field_index(name)
        generations = generations.set_column(index, generations.schema.field(name), column)
    return generations


_HELD_BYTES, _HELD_TABLES = 64 * 10**6, 160
"""At most: enough for the longest chain of changes (`crl.bank.changes`), twice."""
_SMALL_BYTES = 4 * 10**6
_held_tables: OrderedDict[tuple[Path, type[Row], str], pa.Table] = OrderedDict()
"""Tables of banks that this process read, by run and SHA-256, those used last at the end."""


def _held(reader: Reader, round_number: int, stage: str, row_type: type[Row]) -> pa.Table:
    """Rows of one of the tables that a bank is put together from. Every stage of a round needs those of all rounds
    since the last base: a process reads a small one once, and then what came since. It is known by the SHA-256 in its
    manifest, so what a stage sees follows from the record as ever."""
    try:
        files = Manifest.load(reader.path / "rounds" / key_of(round_number, stage)).digested.files
    except RecordDamaged:  # reading says better what is wrong
        return reader.read(round_number, stage, row_type)
    file = files.get(f"{row_type.table}.parquet")
    if file is None or file.bytes > _SMALL_BYTES:
        return reader.read(round_number, stage, row_type)
    key = (reader.path, row_type, file.sha256)
    if key in _held_tables:
        _held_tables.move_to_end(key)
    else:
        _held_tables[key] = reader.read(round_number, stage, row_type)
        while len(_held_tables) > _HELD_TABLES or sum(table.nbytes for table in _held_tables.values()) > _HELD_BYTES:
            _held_tables.popitem(last=False)
    return _held_tables[key]


class MemoryWriter:
    """A writer that leaves the record alone: it keeps in memory what a stage writes.

    For stages that run beside the record: counting parts, further ranks, an evaluation outside the run, making a lost
    stage again.

    `directory` is where files of the stage's own go; asking for it without one raises `refused`.
    """

    def __init__(self, directory: Path | None = None, *, refused: Exception | None = None) -> None:
        self._directory = directory
        self._refused = refused or AssertionError("this stage may write no files of its own")
        self.tables: dict[type[Row], list[pa.Table]] = {}
        """By row type, in the order written: several parts may write to one writer."""
        self.shared: dict[str, bytes] = {}
        """By run-relative path."""

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise self._refused
        return self._directory

    def write(self, row_type: type[Row], table: pa.Table) -> None:
        self.tables.setdefault(row_type, []).append(table)

    def rows(self, row_type: type[R]) -> list[R]:
        """The rows of one type that were written."""
        return [row for table in self.tables.get(row_type, []) for row in rows_of(row_type, table)]

    def share(self, relative: str, content: bytes) -> None:
        self.shared[relative] = content
