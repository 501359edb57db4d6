"""Stages that publish a bank: `initialize` that of round 0, `consolidate` that of every later round.

An experiment may begin with the bank of another one: the import becomes the bank of round 0. Every entry is new here:
version 1, no use, no retrieval. What it was where it comes from is in `imported_entries`. Every vector is computed
again. Those that the import says this embedder made are held against it: an import comes from anywhere, and a vector
decides when its text is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crl.bank.changes import Change, applied, files_of, stored, summary_of
from crl.bank.segments import load_embeddings, load_texts, new_segments, with_files
from crl.bank.snapshot import Snapshot
from crl.config import Method
from crl.errors import BadInput, RecordDamaged
from crl.protocols import TextVectors
from crl.records import (
    Approval,
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    ImportedEntry,
    Weights,
    rows_of,
    schema_of,
)
from crl.rounds.approvals import approve_stage, refusals
from crl.rounds.context import BANK, StageContext
from crl.rounds.proposal import proposal_of
from crl.rounds.stage import SCORES, Read, Refused, Stage, always, nothing_refused
from crl.rounds.weights import base_weights
from crl.run.directory import RunDirectory
from crl.run.imports import BankImport, bank_import, load_import

INITIALIZE = "initialize"
BANK_TABLES = (BankChange, BankSnapshot, BankEntry, BankEvent)
"""What publishes a bank; the whole of it (`BankEntry`) not in every round."""
_TOLERANCE = 1e-3
"""Most that a number of a vector may differ: another machine rounds otherwise."""
IMPORT = "import"
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
    ctx.provenance[IMPORT] = provenance
    texts = [row["text"] for row in rows]
    segments = new_segments(texts, _embedder(ctx, taken, rows, provenance["source"]["embedder"]))
    for relative, content in segments.files.items():
        ctx.share(relative, content)
    cuts = ctx.services.embedder().cuts(texts)
    changes = [Change(None, _entry(row, order, cut)) for order, (row, cut) in enumerate(zip(rows, cuts, strict=True))]
    events = [_event(row, index) for index, row in enumerate(rows)]
    # In order of ids, as consolidation gives them.
    changes.sort(key=lambda change: change.after.entry_id if change.after else "")
    publish(ctx, schema_of(BankEntry).empty_table(), None, with_files(changes, segments, {}), events)
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
    provenance: dict[str, Any] = manifest.provenance[IMPORT]
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


def consolidate(ctx: StageContext) -> None:
    """Apply what the round proposes; operations that a person refused change nothing."""
    proposal = proposal_of(ctx.recipe, ctx.method, ctx.round, ctx.rows, ctx.bank, ctx.run_path)
    result = proposal.applied(refusals(ctx.rows(Approval, "approve")))
    round_before, table_of = ctx.bank_tables()
    known, summary = {}, None
    if round_before is not None:
        known, summary = files_of(result.new_texts, round_before, table_of), summary_of(round_before, table_of)
    new = [text for digest, text in result.new_texts.items() if digest not in known]
    segments = new_segments(new, ctx.services.embedder())
    for relative, content in segments.files.items():
        ctx.share(relative, content)
    publish(ctx, proposal.previous.table, summary, with_files(result.changes, segments, known), result.events)
    ctx.progress(len(proposal.operations), len(proposal.operations), bank=result.size)


def bank_stages(
    *reads: Read, refused: Refused = nothing_refused, due: Callable[[Method, int], bool] = always
) -> tuple[Stage, Stage]:
    """The stages `approve`, due in rounds that change the bank, and `consolidate`.

    `reads` are those of what the recipe keeps out of its bank, `refused`.
    """
    proposal = (Read("consolidate", -1, BANK), Read("distill"), Read("merge"), Read("credit", -1, SCORES), *reads)
    return (
        approve_stage(proposal, refused, due),
        Stage(name="consolidate", run=consolidate, reads=(*proposal, Read("approve")), writes=BANK_TABLES),
    )


def publish(
    ctx: StageContext,
    before: pa.Table,
    summary: BankSnapshot | None,
    changes: list[Change],
    events: Iterable[BankEvent],
) -> None:
    """Write a bank as its changes to the rows `before`, which `summary` sums up, and whole where a base is due."""
    storage = stored(summary, changes, round=ctx.round)
    ctx.write_table(BankChange, storage.changes)
    ctx.write(BankSnapshot, [storage.summary])
    if storage.base:
        ctx.write_table(BankEntry, Snapshot(ctx.round, applied(before, [storage.changes])).table)
    ctx.write(BankEvent, events)


def initialize(ctx: StageContext) -> None:
    """Write a row per set of weights (the base model as it is) and the bank that round 1 reads: an empty one, or
    what was imported (`crl bank import`).

    The embedder is a role that is never trained: its row lets a run refuse another model under the same name. A recipe
    without a bank has neither extractor nor embedder.
    """
    ctx.write(Weights, base_weights(ctx))
    taken = load_import(ctx.run_path)
    if taken is None:
        publish(ctx, schema_of(BankEntry).empty_table(), None, [], [])
    else:
        begin_with(ctx, taken)


initialize_stage = Stage(name=INITIALIZE, run=initialize, writes=(Weights, *BANK_TABLES, ImportedEntry))
