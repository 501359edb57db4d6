"""Gathering a bank for others: the entries after a round with texts, vectors, usefulness and stories as of that round.

Later rounds leave no trace in it, and a round that is not finished has none to take, so the bank of a round is the same
whenever it is taken. The tables are Arrow tables like those of the record, and no part of it: an export goes where a
user wants it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated as A
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crl.errors import BadInput, RecordDamaged
from crl.paths import quoted
from crl.policies.sources import portable_name
from crl.records import RECORD_FORMAT, BankSnapshot, Row, Rules, Weights, rows_of, schema_of, table_of
from crl.report.bank import BankAfter, banked_round, banked_rounds
from crl.report.story import Event, Story
from crl.report.why import stories
from crl.rounds.bank_tables import publishing_stage
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from crl.run.imports import EMBEDDING
from crl.run.manifest import key_of

FORMAT = "complementary-rl bank"
_BATCH = 20_000
"""Entries whose stories are objects in memory at once; each batch reads the run's tables again."""
_TELL = ("credit", "evaluate")
"""Stages that tell of a bank's entries after the round has published it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportedEntry(Row):
    """One entry of the bank after a round."""

    table: ClassVar[str] = "entries"
    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("text",),
        sha256=("content_digest",),
        ordered=(("updated_round", "created_round"),),
        rows={"only what was used has an outcome": "(uses = 0) = (mean_outcome IS NULL)"},
    )
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
    rules: ClassVar[Rules] = Rules(key=("entry_id", "version"), filled=("text",), sha256=("content_digest",))
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
    rules: ClassVar[Rules] = Rules(key=("entry_id", "version", "episode_id"))
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
    parts: dict[type[Row], list[pa.Table]] = {row_type: [table_of(row_type, [])] for row_type in TABLES.values()}
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
        column = entries_schema(dimension).field(EMBEDDING)
        tables[ExportedEntry.table] = tables[ExportedEntry.table].append_column(column, vectors)
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
    run, digest = bank.run, bank.snapshot.digest()
    place = publishing_stage(bank.recipe, run.method, bank.round)
    assert place is not None
    (recorded,) = rows_of(BankSnapshot, run.read(*place, BankSnapshot))
    if recorded.digest != digest:
        raise RecordDamaged(
            f"the bank after round {bank.round} has digest {digest}",
            expected=f"{recorded.digest}, as the round recorded",
            where=str(run.path),
            next_step="run `crl verify` on the run",
        )
    weights = rows_of(Weights, run.read(0, "initialize", Weights))
    embedder = next((row for row in weights if row.role == "embedder"), None)
    if embedder is None:
        raise BadInput(
            f"{run.path} does not say which embedder made its vectors",
            expected="a row of role `embedder` in round 0",
            next_step="run `crl verify` on the run",
        )
    data = {each.name: dict(each.data_digests) for each in run.method.families if each.data_digests}
    models = {
        row.role: {"name": portable_name(row.source), "digest": row.base_digest}
        for row in weights
        if row is not embedder
    }
    return {
        "format": FORMAT,
        "format_version": RECORD_FORMAT,
        "experiment": run.experiment_name,
        "round": bank.round,
        "entries": len(bank.snapshot),
        "method_digest": run.method_digest,
        "stage": key_of(*place),
        "stage_digest": run.manifest(*place).digest,
        "snapshot_digest": digest,
        "embedder": {"name": portable_name(embedder.source), "digest": embedder.base_digest, "dimension": dimension},
        "families": sorted(set(bank.snapshot.table["family"].to_pylist())),
        "versions": {"complementary-rl": metadata.version("complementary-rl"), "pyarrow": pa.__version__},
        # Of whose data it speaks, and which models read them.
        **({"data": data, "models": models} if data else {}),
    }


def entries_schema(dimension: int | None) -> pa.Schema:
    """Schema of `entries`, with vectors of a dimension or without."""
    schema = schema_of(ExportedEntry)
    if dimension is None:
        return schema
    said = {"description": "unit vector of the text"}
    return schema.append(pa.field(EMBEDDING, pa.list_(pa.float32(), dimension), nullable=False, metadata=said))


def lineage_of(stories: Iterable[Story], seen: set[str]) -> tuple[list[LineageRow], list[UseRow]]:
    """The stories as rows: every version of every entry and of its ancestors, each once: `seen` keeps those written."""
    versions, uses = [], []
    for story, version in _versions(stories, seen):
        assert version.version is not None
        versions.append(_lineage_row(story, version))
        for use in version.uses:
            uses.append(UseRow(entry_id=story.entry_id, version=version.version, **dataclasses.asdict(use)))
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
    assert version.version is not None and version.text is not None and version.content_digest is not None
    columns = {
        "operation_id": "operation_id", "generation_id": "generation_id", "prompt": "prompt", "output": "output",
        "extractor_checkpoint": "checkpoint", "extractor_updates": "updates", "extractor_digest": "weights_digest",
    }  # fmt: skip
    written: dict[str, Any] = {name: getattr(version.writing, of, None) for name, of in columns.items()}
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
        uses=len(version.uses),
        mean_outcome=version.mean_outcome,
        guided_minus_free=version.guided_minus_free,
        **written,
    )
