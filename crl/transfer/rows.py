"""The tables of an exported bank: entries, every text that led to them, and every game they guided.

They are Arrow tables like those of the record, and no part of it: an export goes where a user wants it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Annotated as A
from typing import ClassVar

import pyarrow as pa

from crl.records.base import Row, schema_of
from crl.report.story import Event, Story
from crl.run.imports import EMBEDDING


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEntry(Row):
    """One entry of the bank after a round."""

    table: ClassVar[str] = "entries"
    entry_id: A[str, "id in the experiment"]
    family: A[str, "task family"]
    text: A[str, "the experience"]
    content_digest: A[str, "SHA-256 of the text (UTF-8)"]
    version: A[int, "1 when added, +1 with each update"]
    order: A[int, "age order: grows with every add"]
    created_round: A[int, "round it was added"]
    updated_round: A[int, "round of the current text"]
    operation_id: A[str, "operation that wrote the text"]
    distillation_id: A[str, "extractor output that wrote it"]
    generation_id: A[str, "token record of that output"]
    episode_ids: A[list[str], "episodes the text derives from, over its whole lineage"]
    parents: A[list[str], "entries it was merged from"]
    retrieved: A[int, "times chosen to guide an episode, in any words"]
    uses: A[int, "guided episodes of this text that were credited"]
    mean_outcome: A[float | None, "mean of +1 / -1 over them; null without any"]
    story: A[str, "its whole history, JSON, as `crl bank why` shows it"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LineageRow(Row):
    """One text that an exported entry, or one it was merged from, ever had."""

    table: ClassVar[str] = "lineage"
    entry_id: A[str, "entry"]
    family: A[str, "task family"]
    version: A[int, "version of the entry"]
    kind: A[str, "add, update, merge or import"]
    round: A[int, "round it was written"]
    text: A[str, "the experience"]
    content_digest: A[str, "SHA-256 of the text"]
    parents: A[list[str], "entries it was merged from"]
    episode_ids: A[list[str], "episodes it was distilled from"]
    episode_successes: A[list[bool], "their outcomes, of those the record holds"]
    operation_id: A[str | None, "operation that wrote it; null for an import"]
    generation_id: A[str | None, "extractor output"]
    prompt: A[str | None, "what the extractor was shown"]
    output: A[str | None, "what it wrote"]
    extractor_checkpoint: A[str | None, "its weights: a checkpoint of the run, or the base model"]
    extractor_updates: A[int | None, "updates they had gone through"]
    extractor_digest: A[str | None, "SHA-256 of those weights"]
    uses: A[int, "guided episodes of this version"]
    mean_outcome: A[float | None, "mean of +1 / -1 over those credited; null without any"]
    guided_minus_free: A[float | None, "mean difference to the free games of the same groups"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UseRow(Row):
    """One game that a version of the table `lineage` guided."""

    table: ClassVar[str] = "uses"
    entry_id: A[str, "entry"]
    version: A[int, "version of the entry"]
    episode_id: A[str, "the game"]
    round: A[int, "its round"]
    success: A[bool, "whether it was won"]
    similarity: A[float | None, "cosine of the game's description and the text"]
    outcome: A[float | None, "+1 or -1; null where it was not credited"]
    free_mean: A[float | None, "mean outcome of the free games of its group"]
    guided_minus_free: A[float | None, "outcome minus free_mean"]


TABLES: dict[str, type[Row]] = {row_type.table: row_type for row_type in (ExportedEntry, LineageRow, UseRow)}
"""Every table of an export, in order: its name and the type of its rows."""


def with_embeddings(entries: pa.Table, vectors: pa.FixedSizeListArray) -> pa.Table:
    """`entries` with the vectors as a further column."""
    field = pa.field(EMBEDDING, vectors.type, nullable=False, metadata={"description": "unit vector of the text"})
    return entries.append_column(field, vectors)


def entries_schema(dimension: int | None) -> pa.Schema:
    """Schema of `entries`, with vectors of a dimension or without."""
    schema = schema_of(ExportedEntry)
    if dimension is None:
        return schema
    return schema.append(pa.field(EMBEDDING, pa.list_(pa.float32(), dimension), nullable=False))


def lineage_of(stories: Iterable[Story], seen: set[str]) -> tuple[list[LineageRow], list[UseRow]]:
    """The stories as rows: every version of every entry and of its ancestors, each once: `seen` keeps those written."""
    versions, uses = [], []
    for story, version in _versions(stories, seen):
        assert version.version is not None
        versions.append(_lineage_row(story, version))
        uses += [
            UseRow(
                entry_id=story.entry_id,
                version=version.version,
                episode_id=use.episode_id,
                round=use.round,
                success=use.success,
                similarity=use.similarity,
                outcome=use.outcome,
                free_mean=use.free_mean,
                guided_minus_free=use.guided_minus_free,
            )
            for use in version.uses
        ]
    return versions, uses


def story_json(story: Story) -> str:
    """The one JSON text of a story."""
    return json.dumps(story.plain(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _versions(stories: Iterable[Story], seen: set[str]) -> Iterator[tuple[Story, Event]]:
    for story in stories:
        for version in story.versions:
            if version.event_id + story.entry_id in seen:
                continue
            seen.add(version.event_id + story.entry_id)
            yield from _versions(version.parents, seen)
            yield story, version


def _lineage_row(story: Story, version: Event) -> LineageRow:
    writing = version.writing
    assert version.version is not None and version.text is not None and version.content_digest is not None
    return LineageRow(
        entry_id=story.entry_id,
        family=story.family,
        version=version.version,
        kind=version.kind,
        round=version.round,
        text=version.text,
        content_digest=version.content_digest,
        parents=[parent.entry_id for parent in version.parents],
        episode_ids=[each.episode_id for each in version.episodes],
        episode_successes=[each.success for each in version.episodes if each.success is not None],
        operation_id=writing.operation_id if writing else None,
        generation_id=writing.generation_id if writing else None,
        prompt=writing.prompt if writing else None,
        output=writing.output if writing else None,
        extractor_checkpoint=writing.checkpoint if writing else None,
        extractor_updates=writing.updates if writing else None,
        extractor_digest=writing.weights_digest if writing else None,
        uses=len(version.uses),
        mean_outcome=version.mean_outcome,
        guided_minus_free=version.guided_minus_free,
    )
