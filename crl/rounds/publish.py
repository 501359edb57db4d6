"""An experiment that begins with the bank of another one: the import becomes the bank of round 0.

Every entry is new here: version 1, no use, no retrieval. What it was where it comes from is in `imported_entries`.
Every vector is computed again. Those that the import says this embedder made are held against it: an import comes from
anywhere, and a vector decides when its text is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crl.bank.changes import Change
from crl.bank.segments import load_embeddings, load_texts, new_segments, place
from crl.errors import BadInput, RecordDamaged
from crl.protocols import TextVectors
from crl.recipes.complementary.consolidate import publish
from crl.records import BankEntry, BankEvent, ImportedEntry, Weights, rows_of, schema_of
from crl.rounds.context import StageContext
from crl.run.directory import RunDirectory
from crl.run.imports import BankImport, bank_import

INITIALIZE = "initialize"
_TOLERANCE = 1e-3
"""Most that a number of a vector may differ: another machine rounds otherwise."""
IMPORT_NOTE = "import"
"""Where the manifest's provenance describes the import."""


def begin_with(ctx: StageContext, taken: BankImport) -> None:
    """Publish the imported bank as that of round 0. Raises BadInput in a recipe without a bank."""
    if not ctx.recipe.has_bank:
        raise BadInput(
            f"recipe {ctx.recipe.name} keeps no bank, but one was imported",
            expected="a recipe that keeps one, or no import",
            where=str(ctx.run_path / taken.relative),
            next_step="remove that file, or train another recipe under another name",
        )
    rows, provenance = taken.rows(), taken.provenance()
    ctx.share(taken.relative, taken.content)
    ctx.notes[IMPORT_NOTE] = provenance
    texts = [row["text"] for row in rows]
    segments = new_segments(texts, _embedder(ctx, taken, rows, provenance["source"]["embedder"]))
    for relative, content in segments.files.items():
        ctx.share(relative, content)
    cuts = ctx.services.embedder().cuts(texts)
    changes = [Change(None, _entry(row, order, cut)) for order, (row, cut) in enumerate(zip(rows, cuts, strict=True))]
    events = [_event(row, index) for index, row in enumerate(rows)]
    # In order of ids, as consolidation gives them.
    changes.sort(key=lambda change: change.after.entry_id if change.after else "")
    publish(ctx, schema_of(BankEntry).empty_table(), None, place(changes, segments, {}), events)
    names = schema_of(ImportedEntry).names
    ctx.write(ImportedEntry, [ImportedEntry(**{name: row[name] for name in names}) for row in rows])


def _entry(row: dict[str, Any], order: int, embedder_cut: bool) -> BankEntry:
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
        embedder_cut=embedder_cut,
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
        repeats=None,
    )


def import_again(run: RunDirectory) -> BankImport:
    """The import that an experiment began with, from what round 0 made of it.

    Raises RecordDamaged where that is damaged, or the vectors it had were another embedder's.
    """
    manifest = run.manifest(0, INITIALIZE)
    provenance: dict[str, Any] = manifest.provenance[IMPORT_NOTE]
    entries = run.read(0, INITIALIZE, BankEntry)
    texts = load_texts(run.path, entries)
    own = {row["entry_id"]: row for row in entries.to_pylist()}
    imported = run.read(0, INITIALIZE, ImportedEntry).to_pylist()
    rows = [{**own[row["entry_id"]], "text": texts[row["content_digest"]], **row} for row in imported]
    vectors_ND = None
    embedder = provenance["source"]["embedder"]
    if embedder["dimension"] is not None:
        weights = rows_of(Weights, run.read(0, INITIALIZE, Weights))
        if embedder["digest"] not in [row.base_digest for row in weights if row.role == "embedder"]:
            raise RecordDamaged(
                "the vectors of the imported bank are lost: this experiment's embedder is another one",
                expected=f"{embedder['name']} ({embedder['digest']})",
                where=str(run.path),
                next_step="import the same bank again: `crl bank import` puts the file back",
            )
        vectors_ND = load_embeddings(run.path, entries)  # sorted by age, as the import was
    return bank_import(rows, vectors_ND, provenance)


def _embedder(
    ctx: StageContext, taken: BankImport, rows: Sequence[dict[str, Any]], source: dict[str, Any]
) -> TextVectors:
    """The experiment's embedder. Where it made the import's vectors, and makes them again, these: to the last digit
    those that `import_again` finds. Raises BadInput where it makes others."""
    vectors_ND, embedder = taken.vectors(), ctx.services.embedder()
    if vectors_ND is None or source["digest"] != ctx.services.model_digest("embedder"):
        return embedder
    check_vectors(rows, vectors_ND, embedder, source["name"], where=str(ctx.run_path / taken.relative))
    return _Recorded({row["text"]: vector for row, vector in zip(rows, vectors_ND, strict=True)}, vectors_ND.shape[1])


def check_vectors(
    rows: Sequence[Mapping[str, Any]],
    vectors_ND: NDArray[np.float32],
    embedder: TextVectors,
    name: str,
    where: str | None = None,
) -> None:
    """Raise BadInput for a vector of an import that is not what the embedder makes of its text."""
    texts = [row["text"] for row in rows]
    made_ND = embedder.embed(texts)
    same = np.zeros(len(texts), dtype=np.bool_)
    if made_ND.shape == vectors_ND.shape:
        same = (np.abs(made_ND - vectors_ND) < _TOLERANCE).all(axis=1)  # not a number is never the same
    if not same.all():
        row = int(np.flatnonzero(~same)[0])
        raise BadInput(
            f"the imported bank's vector of {rows[row]['entry_id']} (row {row + 1}) is not that of its text",
            expected=f"what {name} makes of it, as the import says",
            where=where,
            next_step=f"{'remove that file and ' if where else ''}import a bank that was exported again, or with "
            "--no-embeddings",
        )


class _Recorded:
    """An embedder that knows the texts it was given and no other."""

    def __init__(self, vectors: dict[str, NDArray[np.float32]], dimension: int) -> None:
        self.dimension, self._vectors = dimension, vectors

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts."""
        return np.stack([self._vectors[text] for text in texts])
