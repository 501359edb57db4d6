"""An experiment that begins with the bank of another one: the import becomes the bank of round 0.

Every entry is new here: version 1, no use, no retrieval. What it was where it comes from stands in `imported_entries`.
Vectors are taken over where the same embedder made them, else made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crl.bank.changes import Change
from crl.bank.segments import new_segments, place
from crl.errors import BadInput
from crl.protocols import Embedder
from crl.recipes.consolidate import publish
from crl.recipes.context import StageContext
from crl.records import BankEntry, BankEvent, ImportedEntry, schema_of
from crl.run.imports import BankImport

IMPORT_NOTE = "import"
"""Where the manifest's provenance tells of the import."""


def begin_with(ctx: StageContext, taken: BankImport) -> None:
    """Publish the imported bank as that of round 0. Raises BadInput in a recipe without a bank."""
    if not ctx.recipe.guided:
        raise BadInput(
            f"recipe {ctx.recipe.name} keeps no bank, but one was imported",
            expected="a recipe that keeps one, or no import",
            where=str(ctx.run_path / taken.relative),
            next_step="remove that file, or train another recipe under another name",
        )
    table, provenance = taken.table(), taken.provenance()
    ctx.share(taken.relative, taken.content)
    ctx.notes[IMPORT_NOTE] = {name: value for name, value in provenance.items() if name != "left_out"}
    rows = table.drop_columns([name for name in ("embedding",) if name in table.column_names]).to_pylist()
    segments = new_segments([row["text"] for row in rows], _embedder(ctx, table, provenance["source"]["embedder"]))
    for relative, content in segments.files.items():
        ctx.share(relative, content)
    changes = [Change(None, _entry(row, order)) for order, row in enumerate(rows)]
    events = [_event(row, index) for index, row in enumerate(rows)]
    # In order of ids, as consolidation gives them.
    changes.sort(key=lambda change: change.after.entry_id if change.after else "")
    publish(ctx, schema_of(BankEntry).empty_table(), None, place(changes, segments, {}), events)
    names = schema_of(ImportedEntry).names
    ctx.write(ImportedEntry, [ImportedEntry(**{name: row[name] for name in names}) for row in rows])


def _entry(row: dict[str, Any], order: int) -> BankEntry:
    return BankEntry(
        entry_id=row["entry_id"],
        family=row["family"],
        content_digest=row["content_digest"],
        segment="",
        embedding_file="",
        version=1,
        created_round=0,
        updated_round=0,
        order=order,
        operation_id=row["operation_id"],
        distillation_id=row["distillation_id"],
        generation_id=row["generation_id"],
        episode_ids=row["episode_ids"],
        parents=row["parents"],
    )


def _event(row: dict[str, Any], index: int) -> BankEvent:
    return BankEvent(
        event_id=f"r0-e{index}",
        round=0,
        kind="import",
        entry_id=row["entry_id"],
        family=row["family"],
        operation_id=None,
        before_digest=None,
        after_digest=row["content_digest"],
        parents=[],
        reason=f"from {row['source_experiment']}, round {row['source_round']}",
    )


def _embedder(ctx: StageContext, table: pa.Table, source: dict[str, Any]) -> Embedder:
    """The import's own vectors where the experiment's embedder made them, else that embedder."""
    if "embedding" not in table.column_names or source["digest"] != ctx.services.model_digest("embedder"):
        return ctx.services.embedder()
    column = table["embedding"].combine_chunks()
    vectors_ND = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return _Recorded(source["name"], dict(zip(table["text"].to_pylist(), vectors_ND, strict=True)), vectors_ND.shape[1])


class _Recorded:
    """An embedder that knows the texts it was given and no other."""

    def __init__(self, name: str, vectors: dict[str, NDArray[np.float32]], dimension: int) -> None:
        self.name, self.dimension, self._vectors = name, dimension, vectors

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts."""
        return np.stack([self._vectors[text] for text in texts])
