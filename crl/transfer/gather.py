"""Gathering a bank for others: the entries after a round with texts, vectors, usefulness and stories as of that round.

Later rounds leave no trace in it, and a round that is not finished has none to take, so the bank of a round is the same
whenever it is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crl.errors import BadInput, RecordDamaged
from crl.paths import quoted
from crl.records import RECORD_FORMAT, BankSnapshot, Row, Weights, rows_of, table_of
from crl.report.bank import BankAfter, banked_round, banked_rounds
from crl.report.why import stories
from crl.rounds.recipe import publishing_stage, recipe_in
from crl.run.directory import RunDirectory
from crl.run.manifest import key_of
from crl.transfer.rows import TABLES, ExportedEntry, LineageRow, UseRow, lineage_of, story_json, with_embeddings

FORMAT = "complementary-rl bank"
_BATCH = 20_000
"""Entries whose stories are objects in memory at once; each batch reads the run's tables again."""
_TELL = ("credit", "evaluate")
"""Stages that tell of a bank's entries after the round has published it."""


@dataclass(frozen=True)
class Gathered:
    """A bank, ready to be written or imported."""

    tables: dict[str, pa.Table]
    """`entries`, the oldest first; `lineage` and `uses`."""
    provenance: dict[str, Any]
    """Where it comes from; nothing in it is a time."""


def gather(run_path: Path, round_number: int | None, *, embeddings: bool = True) -> Gathered:
    """The bank after a round of a run, for None the newest one of which all is told. Raises BadInput, RecordDamaged."""
    run = RunDirectory.open(run_path)
    bank = BankAfter(run, _told_round(run, round_number))
    rows = bank.rows()
    table, texts = bank.table(rows), bank.texts(rows)
    parts: dict[type[Row], list[pa.Table]] = {each: [table_of(each, [])] for each in TABLES.values()}
    seen: set[str] = set()
    for at in range(0, len(rows), _BATCH):
        batch = slice(at, at + _BATCH)
        for row_type, part in _told(bank, table.slice(at, _BATCH), rows[batch], texts[batch], seen).items():
            parts[row_type].append(table_of(row_type, part))
    tables = {row_type.table: pa.concat_tables(listed) for row_type, listed in parts.items()}
    dimension = None
    if embeddings and len(rows):
        vectors_ND = np.ascontiguousarray(bank.embeddings(rows), dtype=np.float32)
        dimension = vectors_ND.shape[1]
        flat = pa.array(vectors_ND.ravel(), pa.float32())
        vectors = pa.FixedSizeListArray.from_arrays(flat, dimension)
        tables[ExportedEntry.table] = with_embeddings(tables[ExportedEntry.table], vectors)
    return Gathered(tables, _provenance(bank, dimension))


def _told_round(run: RunDirectory, asked: int | None) -> int:
    """The round to take. Raises BadInput where it is not finished: its bank would be told of otherwise later."""
    recipe = recipe_in(run)

    def missing(number: int) -> list[str]:
        stages = (stage.name for stage in recipe.stages_of(run.method, number))
        return [name for name in stages if name in _TELL and not run.is_complete(number, name)]

    number = banked_round(run, recipe, asked)
    if asked is None:
        number = next((each for each in reversed(banked_rounds(run, recipe)) if not missing(each)), number)
    if names := missing(number):
        raise BadInput(
            f"round {number} of {run.path} is not finished: {names[0]} is missing",
            expected="a round whose games are credited and evaluated",
            where="--round",
            next_step=f"name an earlier round, or finish this one with `crl resume {quoted(run.path)}`",
        )
    return number


def _told(
    bank: BankAfter, table: pa.Table, rows: NDArray[np.int64], texts: Sequence[str], seen: set[str]
) -> dict[type[Row], Sequence[Row]]:
    """Rows of every table for some entries, with the versions that are not among `seen` yet."""
    names = [field.name for field in dataclasses.fields(ExportedEntry) if field.name in table.column_names]
    told = stories(bank.run.path, table["entry_id"].to_pylist(), until=bank.round)
    entries = [
        ExportedEntry(
            **columns,
            text=text,
            retrieved=int(bank.retrieved_N[row]),
            uses=int(bank.uses_N[row]),
            mean_outcome=float(bank.mean_outcome_N[row]) if bank.uses_N[row] else None,
            story=story_json(told[columns["entry_id"]]),
        )
        for columns, row, text in zip(table.select(names).to_pylist(), rows.tolist(), texts, strict=True)
    ]
    versions, uses = lineage_of(told.values(), seen)
    return {ExportedEntry: entries, LineageRow: versions, UseRow: uses}


def _provenance(bank: BankAfter, dimension: int | None) -> dict[str, Any]:
    run = bank.run
    place = publishing_stage(bank.recipe, run.method, bank.round)
    assert place is not None
    return {
        "format": FORMAT,
        "format_version": RECORD_FORMAT,
        "experiment": run.experiment_name,
        "round": bank.round,
        "entries": len(bank.snapshot),
        "method_digest": run.method_digest,
        "stage": key_of(*place),
        "stage_digest": run.manifest(*place).digest,
        "snapshot_digest": _snapshot_digest(bank, place),
        "embedder": {**_embedder(bank), "dimension": dimension},
        "families": sorted(set(bank.snapshot.table["family"].to_pylist())),
        "versions": {"complementary-rl": metadata.version("complementary-rl"), "pyarrow": pa.__version__},
    }


def _snapshot_digest(bank: BankAfter, place: tuple[int, str]) -> str:
    """As the round recorded it, checked against the rows."""
    digest = bank.snapshot.digest()
    (recorded,) = rows_of(BankSnapshot, bank.run.read(*place, BankSnapshot))
    if recorded.digest != digest:
        raise RecordDamaged(
            f"the bank after round {bank.round} has digest {digest}",
            expected=f"{recorded.digest}, as the round recorded",
            where=str(bank.run.path),
            next_step="run `crl verify` on the run",
        )
    return digest


def _embedder(bank: BankAfter) -> dict[str, str]:
    for row in rows_of(Weights, bank.run.read(0, "initialize", Weights)):
        if row.role == "embedder":
            return {"name": row.source, "digest": row.base_digest}
    raise BadInput(
        f"{bank.run.path} does not say which embedder made its vectors",
        expected="a row of role `embedder` in round 0",
        next_step="run `crl verify` on the run",
    )
