"""Rows of the experience bank: what the extractor asked for, what became of it, and the bank after each round."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records.base import Row, Rules, together


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Distillation(Row):
    """One extractor output, and what became of it."""

    table: ClassVar[str] = "distillations"
    added: ClassVar[tuple[str, ...]] = ("candidate",)
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
    operations: A[int, "operations it asks for"]
    turns: A[int | None, "turns of the episode; null for a merge"]
    turns_shown: A[int | None, "turns that the prompt showed in full; fewer than turns if it was cut"]
    candidate: A[int, "number among the outputs about its episode, from 0 (`distill.outputs`)"] = 0

    rules: ClassVar[Rules] = Rules(
        key=("distillation_id",),
        filled=("distillation_id", "generation_id", "family", "reason_code"),
        unique=(("generation_id",),),
        sets={
            "kind": ("distill", "merge"),
            "format": ("json", "lines"),
            "verdict": ("malformed", "return", "add", "update", "mixed", "merge"),
        },
        rows={
            "a distillation has its episode, a merge its entries": (
                "(kind = 'distill') = (episode_id IS NOT NULL) AND (kind = 'distill' OR len(source_entry_ids) > 0)"
            ),
            "a distillation says how many turns there were and were shown, a merge has none": (
                "CASE kind WHEN 'distill' THEN turns_shown BETWEEN 0 AND turns "
                "ELSE turns IS NULL AND turns_shown IS NULL END"
            ),
            "outputs about one episode have different numbers": (
                "CASE kind WHEN 'distill' THEN candidate >= 0 AND "
                "count(*) OVER (PARTITION BY episode_id, candidate) = 1 ELSE candidate = 0 END"
            ),
            "malformed has a reason code other than ok": "(verdict = 'malformed') = (reason_code <> 'ok')",
            "malformed output asks for nothing": "operations >= 0 AND (verdict <> 'malformed' OR operations = 0)",
        },
        between={
            "an extractor output has its token record": (
                "SELECT d.row, d.distillation_id AS id FROM distillations d LEFT JOIN generations g USING "
                "(generation_id) WHERE g.generation_id IS NULL OR g.kind <> d.kind"
            ),
        },
    )


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
    embedder_cut: A[bool | None, "whether the embedder reads only the start of the text; null: no text"]

    rules: ClassVar[Rules] = Rules(
        key=("operation_id",),
        filled=("distillation_id", "generation_id", "family"),
        sets={"kind": ("add", "update", "return", "keep", "merge", "drop")},
        ranges={"index": (0, None)},
        rows={
            "the id names output and position": "operation_id = distillation_id || '-o' || \"index\"",
            "everything but return names an entry": "(kind = 'return') = (entry_id IS NULL)",
            "add, update and merge have a text": (
                "kind NOT IN ('add', 'update', 'merge') OR (text IS NOT NULL AND trim(text) <> '')"
            ),
            "return and drop have no text": "kind NOT IN ('return', 'drop') OR text IS NULL",
            "of every text it is known whether the embedder reads all of it": together("text", "embedder_cut"),
        },
        between={
            "an operation belongs to an output that is not malformed, and to its token record": (
                "SELECT o.row, o.operation_id AS id FROM operations o LEFT JOIN distillations d USING "
                "(distillation_id) WHERE d.distillation_id IS NULL OR d.verdict = 'malformed' OR d.generation_id <> "
                "o.generation_id"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance(Row):
    """Two similar texts: one that the round would add, and one that it may repeat."""

    table: ClassVar[str] = "resemblances"
    content_digest: A[str, "SHA-256 of the text of an operation of this stage"]
    other_digest: A[str, "SHA-256 of a text of the bank before the round, or of another operation of the round"]
    similarity: A[float, "cosine of the two, at least bank.similarity"]

    rules: ClassVar[Rules] = Rules(
        key=("content_digest", "other_digest"),
        sha256=("content_digest", "other_digest"),
        ranges={"similarity": (0, 1.0001)},
        rows={"a text does not repeat itself": "content_digest <> other_digest"},
        between={
            "what resembles another text is the text of an operation": (
                "SELECT r.row, r.content_digest AS id FROM resemblances r "
                "ANTI JOIN (SELECT sha256(text) AS content_digest FROM operations WHERE text IS NOT NULL) o "
                "USING (content_digest)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankEntry(Row):
    """One entry of the bank after a round. `bank_text` has its text."""

    table: ClassVar[str] = "bank"
    entry_id: A[str, "id, stable over updates"]
    family: A[str, "task family, set by the system"]
    content_digest: A[str, "SHA-256 of the text (UTF-8)"]
    segment: A[str, "run-relative path of the Parquet segment holding the text"]
    embedding_file: A[str, "run-relative path of the Parquet file holding the embedding"]
    version: A[int, "1 when added, +1 with each update"]
    created_round: A[int, "round it was added"]
    updated_round: A[int, "round of the current text"]
    order: A[int, "order of age; FIFO evicts the smallest"]
    operation_id: A[str, "operation that wrote the current text"]
    distillation_id: A[str, "extractor output that wrote it"]
    generation_id: A[str, "token record of that output"]
    episode_ids: A[list[str], "episodes the text derives from, over its whole lineage"]
    parents: A[list[str], "entries it was merged from; if one is still in the bank, this is its newer version"]
    embedder_cut: A[bool, "whether the embedder reads only the start of the text, so that search misses the rest"]

    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("entry_id", "family", "operation_id", "distillation_id", "generation_id"),
        sha256=("content_digest",),
        unique=(("order",),),
        ranges={"version": (1, None)},
        patterns={"segment": "^bank/", "embedding_file": "^bank/"},
        ordered=(("updated_round", "created_round"),),
        rows={
            "an entry derives from some episode": "len(episode_ids) > 0",
            "an entry is not its own parent": "NOT list_contains(parents, entry_id)",
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankChange(BankEntry):
    """One entry that a round added, changed or removed: its new row, or its last."""

    table: ClassVar[str] = "bank_changes"
    removed: A[bool, "whether the entry left the bank; other columns then show its last row"]

    rules: ClassVar[Rules] = dataclasses.replace(
        BankEntry.rules,
        between={
            "an entry that changed in this round has the event of its change": (
                "SELECT b.row, b.entry_id AS id FROM bank_changes b WHERE NOT b.removed AND NOT EXISTS "
                "(SELECT 1 FROM bank_events v WHERE v.entry_id = b.entry_id AND v.after_digest = b.content_digest)"
            ),
            "what was evicted or dropped is not in the bank": (
                "SELECT b.row, b.entry_id AS id FROM bank_changes b JOIN (SELECT entry_id, arg_max(kind, row) AS last "
                "FROM bank_events WHERE entry_id IS NOT NULL AND kind IN ('add', 'update', 'merge', 'drop', 'evict') "
                "GROUP BY entry_id) v USING (entry_id) WHERE v.last IN ('drop', 'evict') AND NOT b.removed"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankSnapshot(Row):
    """The bank after a round in one row: its size, what changed, and the digest of its entries."""

    table: ClassVar[str] = "bank_snapshots"
    round: A[int, "round of the snapshot"]
    entries: A[int, "entries of the bank after the round"]
    changed: A[int, "entries the round added or changed"]
    removed: A[int, "entries the round removed: merged into others, dropped or evicted"]
    base_round: A[int, "newest round that stored the whole bank; later ones store changes"]
    changes_since_base: A[int, "rows of changes stored since"]
    digest: A[str, "sum over entries of each row's SHA-256 (without file names) modulo 2^256, in hex"]

    rules: ClassVar[Rules] = Rules(
        key=("round",),
        sha256=("digest",),
        ranges={
            "entries": (0, None),
            "changed": (0, None),
            "removed": (0, None),
            "changes_since_base": (0, None),
            "base_round": (0, None),
        },
        ordered=(("round", "base_round"),),
        rows={"after a base nothing has changed yet": "base_round < round OR changes_since_base = 0"},
        between={
            "the summary of a bank counts the changes of the round": (
                "SELECT s.row, s.round::VARCHAR AS id FROM bank_snapshots s, (SELECT count(*) FILTER (NOT removed) AS "
                "changed, count(*) FILTER (removed) AS removed FROM bank_changes) c "
                "WHERE s.changed <> c.changed OR s.removed <> c.removed"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankText(Row):
    """One text, stored once by its digest."""

    table: ClassVar[str] = "bank_texts"
    content_digest: A[str, "SHA-256 of the text (UTF-8)"]
    text: A[str, "the experience"]

    rules: ClassVar[Rules] = Rules(
        key=("content_digest",),
        filled=("text",),
        rows={"the digest is that of the text": "sha256(text) = content_digest"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankEvent(Row):
    """One change of the bank, or one that was rejected."""

    table: ClassVar[str] = "bank_events"
    event_id: A[str, "r<round>-e<index>, in order of application"]
    round: A[int, "round of the snapshot"]
    kind: A[str, "import, add, update, merge, drop, evict, keep, return or rejected"]
    entry_id: A[str | None, "entry concerned"]
    family: A[str | None, "its task family"]
    operation_id: A[str | None, "operation behind it; null for an import or an eviction"]
    before_digest: A[str | None, "text before"]
    after_digest: A[str | None, "text after"]
    parents: A[list[str], "entries merged into it; for waits_beside, the proven entries that it updates"]
    reason: A[str | None, "why it was rejected, evicted or waits_beside"]
    repeats: A[str | None, "the entry that a duplicate or contained text repeats, or that an entry left for"]

    rules: ClassVar[Rules] = Rules(
        key=("event_id",),
        filled=("event_id",),
        sets={"kind": ("import", "add", "update", "merge", "drop", "evict", "keep", "return", "rejected")},
        rows={
            "an import or eviction has no operation, anything else has one": (
                "(kind IN ('import', 'evict')) = (operation_id IS NULL)"
            ),
            "a rejection or eviction has a reason": "kind NOT IN ('rejected', 'evict') OR reason IS NOT NULL",
            "only a rejected duplicate repeats an entry, and what left for another one": (
                "repeats IS NULL OR (repeats <> '' AND CASE kind WHEN 'rejected' THEN reason IN ('duplicate', "
                "'near_duplicate', 'unchanged', 'contained') WHEN 'evict' THEN reason IN ('contained', "
                "'newer_version', 'older_version') ELSE false END)"
            ),
            "what waits beside an entry names it": (
                "kind <> 'add' OR (coalesce(reason, '') = 'waits_beside') = (len(parents) > 0)"
            ),
            "what is imported, added, updated or merged has a new text": (
                "kind NOT IN ('import', 'add', 'update', 'merge')"
                " OR (entry_id IS NOT NULL AND after_digest IS NOT NULL)"
            ),
            "an imported or added entry had no text before": "kind NOT IN ('import', 'add') OR before_digest IS NULL",
            "what is dropped or evicted is gone": (
                "kind NOT IN ('drop', 'evict') OR (entry_id IS NOT NULL AND after_digest IS NULL)"
            ),
        },
        between={
            "an entry that was evicted or dropped is removed, unless it came in this round": (
                "SELECT v.row, v.entry_id AS id FROM (SELECT max(row) AS row, entry_id, arg_min(kind, row) AS first, "
                "arg_max(kind, row) AS last FROM bank_events WHERE kind IN ('add', 'update', 'merge', 'drop', 'evict') "
                "GROUP BY entry_id) v ANTI JOIN (SELECT entry_id FROM bank_changes WHERE removed) b USING (entry_id) "
                "WHERE v.last IN ('drop', 'evict') AND v.first NOT IN ('add', 'merge')"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEntry(Row):
    """One imported entry, and its history in the experiment it comes from."""

    table: ClassVar[str] = "imported_entries"
    entry_id: A[str, "id here: <source experiment>-r<source round>-<id there>"]
    family: A[str, "task family here"]
    content_digest: A[str, "SHA-256 of the text"]
    generation_id: A[str, "extractor output that wrote the text, in the source experiment"]
    source_experiment: A[str, "experiment it comes from"]
    source_round: A[int, "round of the bank it was taken from"]
    source_snapshot: A[str, "digest of that bank (bank_snapshots)"]
    source_entry_id: A[str, "id there"]
    source_family: A[str, "task family there"]
    source_version: A[int, "version there"]
    uses: A[int, "guided episodes of its text there; here the count starts at 0"]
    mean_outcome: A[float | None, "mean outcome (±1) of those uses; null: none"]
    story: A[str, "its history there as `crl bank why RUN ID --format json` shows it"]

    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("family", "generation_id", "source_experiment", "source_family"),
        sha256=("content_digest", "source_snapshot"),
        ranges={"source_round": (0, None), "source_version": (1, None), "uses": (0, None), "mean_outcome": (-1, 1)},
        rows={
            "the id names where it comes from": (
                "entry_id = source_experiment || '-r' || printf('%04d', source_round) || '-' || source_entry_id"
            ),
            "what was used has an outcome": "(uses = 0) = (mean_outcome IS NULL)",
            "its story is JSON": "json_valid(story)",
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Approval(Row):
    """What a person decided about the bank of a round before it was published."""

    table: ClassVar[str] = "approvals"
    round: A[int, "round of the bank"]
    decision: A[str, "approved, partly or rejected"]
    person: A[str, "who decided"]
    reason: A[str | None, "why, in their words"]
    operations: A[int, "operations that the person was shown"]
    rejected_operations: A[list[str], "operations that were rejected, in order"]

    rules: ClassVar[Rules] = Rules(
        key=("round",),
        sets={"decision": ("approved", "partly", "rejected")},
        ranges={"operations": (0, None)},
        rows={
            "a person is named": "trim(person) <> ''",
            "a rejected operation is named once": "len(list_distinct(rejected_operations)) = len(rejected_operations)",
            "approved rejects nothing, rejected everything, partly something between": (
                "CASE decision WHEN 'approved' THEN len(rejected_operations) = 0 "
                "WHEN 'rejected' THEN len(rejected_operations) = operations "
                "ELSE len(rejected_operations) BETWEEN 1 AND operations - 1 END"
            ),
        },
    )
