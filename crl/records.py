"""The vocabulary of the system: row types and their Arrow schemas.

A row type is a frozen dataclass whose annotations carry a description and, where the Python type is too wide, the
Arrow type. :func:`schema_of` derives the Arrow schema (descriptions become field metadata), :func:`table_of` and
:func:`rows_of` convert. Rows hold no clock times: equal runs have equal rows. Protocols between rooms are in
`crl/protocols.py`; this file imports nothing of the project.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import Annotated as A
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

_TOKENS = pa.list_(pa.int32())
_FLOATS = pa.list_(pa.float32())
_MASK = pa.list_(pa.int8())
_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class Row:
    """Base of every row type. `table` is the file's stem and the name of the SQL view."""

    table: ClassVar[str]


R = TypeVar("R", bound=Row)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task(Row):
    """One planned episode: a slot of a group."""

    table: ClassVar[str] = "tasks"
    episode_id: A[str, "r<round>-<family>-g<group>-m<member>; evaluation episodes have their own ids"]
    round: A[int, "round number; 0 prepares, training starts at 1"]
    family: A[str, "task family, set by the config"]
    group: A[int, "group index over all families of the round"]
    member: A[int, "index inside the group, 0 to K-1"]
    environment_seed: A[int, "seed of the environment; shared by the group"]
    slot: A[str, "guided or free, as planned; an episode without a retrieved experience is free whatever its slot"]
    goal: A[str, "what the environment asks for"]
    first_observation: A[str, "text of the first observation"]
    query: A[str, "retrieval query: goal and first observation"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval(Row):
    """One candidate of one retrieval, with every term of eq. 6."""

    table: ClassVar[str] = "retrievals"
    episode_id: A[str, "episode the experience was retrieved for"]
    round: A[int, "round of the episode"]
    bank_round: A[int, "round of the bank snapshot that was searched"]
    family: A[str, "task family of the episode"]
    entry_id: A[str, "candidate entry"]
    content_digest: A[str, "SHA-256 of the candidate's text at that snapshot"]
    generation_id: A[str, "extractor output that wrote this text"]
    rank: A[int, "rank by similarity, 0 is the nearest"]
    similarity: A[float, "cosine of query and entry"]
    rank_score: A[float, "s_rank of eq. 6"]
    count: A[int, "c of eq. 6: retrievals of the entry before this one"]
    recent: A[bool, "whether the entry was retrieved inside the recency window"]
    score: A[float, "s of eq. 6"]
    chosen: A[bool, "whether this candidate guides the episode"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalCount(Row):
    """Cumulative retrieval counters after a round was planned, derived from the retrieval rows."""

    table: ClassVar[str] = "retrieval_counts"
    entry_id: A[str, "bank entry"]
    count: A[int, "times chosen so far, evaluation excluded"]
    last_round: A[int, "round of the last choice"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Episode(Row):
    """One played episode."""

    table: ClassVar[str] = "episodes"
    episode_id: A[str, "as planned"]
    round: A[int, "round number"]
    family: A[str, "task family"]
    group: A[int, "group index of the round"]
    member: A[int, "index inside the group"]
    environment_seed: A[int, "seed of the environment"]
    guided: A[bool, "whether an experience stood in the prompt"]
    entry_id: A[str | None, "entry that guided the episode"]
    content_digest: A[str | None, "version of that entry"]
    experience: A[str | None, "text of that entry as shown"]
    goal: A[str, "what the environment asked for"]
    success: A[bool, "binary outcome"]
    reward: A[float, "outcome reward of the environment"]
    turns: A[int, "turns played"]
    invalid_actions: A[int, "turns whose action did not parse or was illegal"]
    stop_reason: A[str, "success, failure, turn_limit, context_limit or error"]
    error: A[str | None, "reason code where the environment broke"]
    generation_id: A[str, "token record of the episode"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Row):
    """One turn of an episode."""

    table: ClassVar[str] = "turns"
    episode_id: A[str, "episode"]
    turn: A[int, "turn index from 0"]
    observation: A[str, "what the actor saw before acting"]
    output: A[str, "the actor's text"]
    action: A[str | None, "parsed legal action; null where there was none"]
    valid: A[bool, "whether the action was legal and taken"]
    feedback: A[str | None, "what was answered to an invalid action"]
    first_token: A[int, "offset of the output's first token in the generation's token_ids"]
    last_token: A[int, "offset one past the output's last token"]
    stop_reason: A[str, "end_of_turn or length"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Row):
    """The token record of everything a model wrote: the ids sampled are the ids trained."""

    table: ClassVar[str] = "generations"
    generation_id: A[str, "id; derived from what it was written for"]
    round: A[int, "round number"]
    stage: A[str, "stage that sampled it"]
    role: A[str, "role that wrote it: actor or extractor"]
    kind: A[str, "episode, distill or merge"]
    weights_digest: A[str, "digest of the weights that sampled it (table weights)"]
    temperature: A[float, "sampling temperature; log-probabilities are of the scaled distribution"]
    token_ids: A[list[int], _TOKENS, "whole sequence, prompt and observations included"]
    loss_mask: A[list[int], _MASK, "1 where the model sampled the token, else 0"]
    logprobs: A[list[float], _FLOATS, "behaviour log-probability where the mask is 1 (before top-k / top-p), else 0"]
    prompt: A[str, "text of the first prompt"]
    output: A[str, "text the model wrote (all turns)"]
    stop_reason: A[str, "why sampling ended"]


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Row):
    """One operation an extractor output asks for."""

    table: ClassVar[str] = "operations"
    operation_id: A[str, "<distillation_id>-o<index>"]
    distillation_id: A[str, "output it stands in"]
    generation_id: A[str, "token record of that output"]
    round: A[int, "round number"]
    index: A[int, "position in the output"]
    kind: A[str, "add, update, return, keep, merge or drop"]
    family: A[str, "task family, set by the system"]
    entry_id: A[str | None, "entry it creates or changes; null for return"]
    parents: A[list[str], "entries it replaces or derives from"]
    episode_ids: A[list[str], "episodes it was distilled from"]
    text: A[str | None, "experience text; null for return and drop"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BankEntry(Row):
    """One entry of a bank snapshot. The text lies in a content-addressed segment."""

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
    kind: A[str, "add, update, merge, drop, evict, keep, return or rejected"]
    entry_id: A[str | None, "entry concerned"]
    family: A[str | None, "its task family"]
    operation_id: A[str | None, "operation behind it; null for an eviction"]
    before_digest: A[str | None, "text before"]
    after_digest: A[str | None, "text after"]
    parents: A[list[str], "entries merged into it"]
    reason: A[str | None, "why it was rejected or evicted"]


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credit(Row):
    """One use of an experience: the outcome of one guided episode, for the output that wrote the text."""

    table: ClassVar[str] = "credits"
    round: A[int, "round of the use"]
    episode_id: A[str, "guided episode"]
    entry_id: A[str, "entry that guided it"]
    content_digest: A[str, "version of the entry"]
    generation_id: A[str, "extractor output that wrote that version"]
    outcome: A[float, "+1 success, -1 failure (section 3)"]
    free_mean: A[float | None, "mean outcome of the free twins of the same group; null without any"]
    guided_minus_free: A[float | None, "outcome minus free_mean: a diagnostic, never trained on"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EntryScore(Row):
    """Cumulative usefulness of an entry."""

    table: ClassVar[str] = "entry_scores"
    entry_id: A[str, "bank entry"]
    uses: A[int, "guided episodes so far"]
    mean_outcome: A[float, "mean of +1 / -1 over them"]
    last_used_round: A[int, "round of the last use"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BufferItem(Row):
    """State of one extractor output on its way to training, after this round's credit."""

    table: ClassVar[str] = "buffer"
    generation_id: A[str, "extractor output"]
    generation_round: A[int, "round that wrote it"]
    generation_stage: A[str, "stage that wrote it: distill or merge"]
    kind: A[str, "used, malformed or return"]
    entered_round: A[int, "round it (re-)entered the buffer"]
    entered_order: A[int, "order of entry over the run: the oldest are trained first"]
    uses: A[int, "scored uses since it entered"]
    score_sum: A[float, "sum of their outcomes"]
    train_count: A[int, "c_train of eq. 7"]
    last_trained_round: A[int | None, "t_last of eq. 7"]
    status: A[str, "waiting, selected (trained this round), trained (waits for new uses) or dropped"]
    reason: A[str | None, "why it was dropped"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Row):
    """One training sample: all that `learn` ever reads."""

    table: ClassVar[str] = "samples"
    sample_id: A[str, "id"]
    round: A[int, "round it is trained in"]
    role: A[str, "role it trains"]
    objective: A[str, "grpo, cispo or nll"]
    source: A[str, "<round>/<stage> of the generation"]
    generation_id: A[str, "token record it was made from"]
    reward: A[float, "reward before the baseline"]
    advantage: A[float, "advantage of eq. 3 or 5; 1 for nll"]
    weight: A[float, "factor of this sample in the objective (subgroup weight, eq. 7)"]
    temperature: A[float, "logits are divided by it, as when sampling"]
    token_ids: A[list[int], _TOKENS, "whole sequence"]
    loss_mask: A[list[int], _MASK, "1 on trained tokens"]
    logprobs: A[list[float], _FLOATS, "stored behaviour log-probabilities"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Row):
    """Which weights a role has after a round."""

    table: ClassVar[str] = "weights"
    role: A[str, "actor, extractor, or embedder (never trained: round 0 only)"]
    round: A[int, "round this row belongs to"]
    updates: A[int, "RL updates so far"]
    source: A[str, "base model, or embedder, as configured"]
    base_digest: A[str, "SHA-256 over the base model's files"]
    checkpoint: A[str | None, "run-relative directory of the checkpoint; null means the base model as it is"]
    weights_digest: A[str, "SHA-256 identifying base and checkpoint together"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Row):
    """One number about a stage."""

    table: ClassVar[str] = "metrics"
    round: A[int, "round number"]
    stage: A[str, "stage"]
    name: A[str, "name of the figure"]
    value: A[float, "its value"]
    alarm: A[str | None, "what is wrong with it, where it is outside its bounds"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Row):
    """One held-out episode."""

    table: ClassVar[str] = "evaluations"
    evaluation_id: A[str, "id"]
    round: A[int, "round evaluated"]
    arm: A[str, "with_bank or without_bank"]
    family: A[str, "task family"]
    environment_seed: A[int, "held-out seed"]
    guided: A[bool, "whether an experience was found"]
    entry_id: A[str | None, "entry shown"]
    success: A[bool, "binary outcome"]
    reward: A[float, "outcome reward"]
    turns: A[int, "turns played"]
    invalid_actions: A[int, "turns without a legal action"]
    stop_reason: A[str, "as in episodes"]
    actions: A[list[str], "actions taken; an invalid one is the empty string"]


ROW_TYPES: tuple[type[Row], ...] = (
    Task, Retrieval, RetrievalCount, Episode, Turn, Generation, Distillation, Operation, BankEntry, BankText,
    BankEvent, Approval, Credit, EntryScore, BufferItem, Sample, Weights, Metric, Evaluation,
)  # fmt: skip
ROW_TYPE_BY_TABLE: dict[str, type[Row]] = {row_type.table: row_type for row_type in ROW_TYPES}


def _arrow_type(python_type: Any) -> tuple[pa.DataType, bool]:
    origin = typing.get_origin(python_type)
    if origin in (types.UnionType, typing.Union):
        inner = next(arg for arg in typing.get_args(python_type) if arg is not type(None))
        return _arrow_type(inner)[0], True
    if origin is list:
        return pa.list_(_arrow_type(typing.get_args(python_type)[0])[0]), False
    return _ARROW[python_type], False


_SCHEMAS: dict[type[Row], pa.Schema] = {}


def schema_of(row_type: type[Row]) -> pa.Schema:
    """Arrow schema of a row type; a field's description is its metadata entry `description`."""
    if row_type in _SCHEMAS:
        return _SCHEMAS[row_type]
    hints = typing.get_type_hints(row_type, include_extras=True)
    fields = []
    for field in dataclasses.fields(row_type):  # type: ignore[arg-type]
        python_type, *extras = typing.get_args(hints[field.name])
        arrow, nullable = _arrow_type(python_type)
        for extra in extras:
            if isinstance(extra, pa.DataType):
                arrow = extra
        fields.append(pa.field(field.name, arrow, nullable=nullable, metadata={"description": extras[-1]}))
    _SCHEMAS[row_type] = pa.schema(fields)
    return _SCHEMAS[row_type]


def table_of(row_type: type[R], rows: Iterable[R]) -> pa.Table:
    """Rows as an Arrow table with the schema of their type, in the order given."""
    listed = list(rows)
    schema = schema_of(row_type)
    columns = [pa.array([getattr(row, name) for row in listed], type=schema.field(name).type) for name in schema.names]
    return pa.table(columns, schema=schema)


def rows_of(row_type: type[R], table: pa.Table) -> list[R]:
    """The rows of an Arrow table (the inverse of :func:`table_of`)."""
    return [row_type(**row) for row in table.select(schema_of(row_type).names).to_pylist()]
