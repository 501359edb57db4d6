"""Rows of the experience bank: what the extractor asked for, what became of it, and the bank after each round."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import Row


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Distillation(Row):
    """What became of one extractor output."""

    table: ClassVar[str] = "distillations"
    distillation_id: A[str, "id"]
    round: A[int, "round number"]
    kind: A[str, "distill or merge"]
    family: A[str, "task family, set by the system"]
    episode_id: A[str | None, "episode it was distilled from; null for a merge"]
    guiding_entry_id: A[str | None, "entry that guided that episode"]
    source_entry_ids: A[list[str], "entries shown to a merge"]
    generation_id: A[str, "token record"]
    format: A[str, "json or lines"]
    reason_code: A[str, "ok, or why the output is malformed"]
    verdict: A[str, "malformed, return, add, update, mixed or merge"]
    operations: A[int, "operations applied for"]
    turns: A[int | None, "turns of the episode; null for a merge"]
    turns_shown: A[int | None, "turns that the prompt showed in full: fewer than turns where it was cut"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Row):
    """One operation an extractor output asks for."""

    table: ClassVar[str] = "operations"
    operation_id: A[str, "<distillation_id>-o<index>"]
    distillation_id: A[str, "output it is in"]
    generation_id: A[str, "token record of that output"]
    round: A[int, "round number"]
    index: A[int, "position in the output"]
    kind: A[str, "add, update, return, keep, merge or drop"]
    family: A[str, "task family, set by the system"]
    entry_id: A[str | None, "entry it creates or changes; null for return"]
    parents: A[list[str], "entries it replaces or derives from"]
    episode_ids: A[list[str], "episodes it was distilled from"]
    text: A[str | None, "experience text; null for return and drop"]
    embedder_cut: A[bool | None, "whether the embedder reads only the beginning of the text; null without a text"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance(Row):
    """Two texts whose embeddings resemble each other: one that the round wants to hold, and one that it may repeat."""

    table: ClassVar[str] = "resemblances"
    content_digest: A[str, "SHA-256 of the text of an operation of this stage"]
    other_digest: A[str, "SHA-256 of a text of the bank before the round, or of another operation of the round"]
    similarity: A[float, "cosine of the two, at least bank.similarity"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankEntry(Row):
    """One entry of a bank snapshot. The text is in a content-addressed segment."""

    table: ClassVar[str] = "bank"
    entry_id: A[str, "id, stable over updates"]
    family: A[str, "task family, set by the system"]
    content_digest: A[str, "SHA-256 of the text (UTF-8)"]
    segment: A[str, "run-relative path of the Parquet segment holding the text"]
    embedding_file: A[str, "run-relative path of the Parquet file holding the embedding"]
    version: A[int, "1 when added, +1 with each update"]
    created_round: A[int, "round it was added"]
    updated_round: A[int, "round of the current text"]
    order: A[int, "age order: grows with every add; FIFO evicts the smallest"]
    operation_id: A[str, "operation that wrote the current text"]
    distillation_id: A[str, "extractor output that wrote it"]
    generation_id: A[str, "token record of that output"]
    episode_ids: A[list[str], "episodes the text derives from, over its whole lineage"]
    parents: A[list[str], "entries it was merged from"]
    embedder_cut: A[bool, "whether the embedder reads only the beginning of the text: it is not found by the rest"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankChange(BankEntry):
    """One entry whose row a round added, changed or removed: its new row, or the last one it had."""

    table: ClassVar[str] = "bank_changes"
    removed: A[bool, "whether the entry left the bank; the other columns then are its last row"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankSnapshot(Row):
    """The bank after a round in one row: its size, what changed, and the digest of its entries."""

    table: ClassVar[str] = "bank_snapshots"
    round: A[int, "round of the snapshot"]
    entries: A[int, "entries of the bank after the round"]
    changed: A[int, "entries the round added or changed"]
    removed: A[int, "entries the round removed: merged into others, dropped or evicted"]
    base_round: A[int, "newest round up to this one that stored the whole bank; later ones stored their changes"]
    changes_since_base: A[int, "rows of changes stored after that round, up to this one"]
    digest: A[str, "sum over entries of the SHA-256 of the row without its two file names, modulo 2^256, in hex"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankText(Row):
    """One text of a content-addressed segment."""

    table: ClassVar[str] = "bank_texts"
    content_digest: A[str, "SHA-256 of the text (UTF-8)"]
    text: A[str, "the experience"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankEvent(Row):
    """One change of the bank, or one that was asked for and not made."""

    table: ClassVar[str] = "bank_events"
    event_id: A[str, "r<round>-e<index>, in order of application"]
    round: A[int, "round of the snapshot"]
    kind: A[str, "import, add, update, merge, drop, evict, keep, return or rejected"]
    entry_id: A[str | None, "entry concerned"]
    family: A[str | None, "its task family"]
    operation_id: A[str | None, "operation behind it; null for an import or an eviction"]
    before_digest: A[str | None, "text before"]
    after_digest: A[str | None, "text after"]
    parents: A[list[str], "entries merged into it"]
    reason: A[str | None, "why it was rejected or evicted"]
    repeats: A[str | None, "of a rejected duplicate: the entry that holds the text, or resembles it most; else null"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEntry(Row):
    """One entry that an experiment began with, and what it was in the experiment it comes from."""

    table: ClassVar[str] = "imported_entries"
    entry_id: A[str, "id here: <source experiment>-r<source round>-<id there>"]
    family: A[str, "task family here"]
    content_digest: A[str, "SHA-256 of the text"]
    generation_id: A[str, "extractor output that wrote the text, prefixed as the id: it is in the other experiment"]
    source_experiment: A[str, "experiment it comes from"]
    source_round: A[int, "round of the bank it was taken from"]
    source_snapshot: A[str, "digest of that bank (bank_snapshots)"]
    source_entry_id: A[str, "id there"]
    source_family: A[str, "task family there"]
    source_version: A[int, "version there"]
    uses: A[int, "guided episodes of its text there; here they are counted from 0"]
    mean_outcome: A[float | None, "mean of +1 / -1 over those uses; null without any"]
    story: A[str, "its history there as `crl bank why RUN ID --format json` shows it"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Approval(Row):
    """What a person decided about the bank of a round before it was published."""

    table: ClassVar[str] = "approvals"
    round: A[int, "round of the bank"]
    decision: A[str, "approved, partly or rejected"]
    person: A[str, "who decided"]
    reason: A[str | None, "why, in their words"]
    operations: A[int, "operations that asked for a change: what the person was shown"]
    rejected_operations: A[list[str], "operations that were refused, in order"]
