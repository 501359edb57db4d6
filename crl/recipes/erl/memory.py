"""The memory: reflections that led to a success, in the experience bank. Reflecting reads it; nothing else does.

The stage `distill` puts a reflection into the terms of the bank: an operation `add` where the attempt that it guided
succeeded, `return` where it did not, a malformed output as such. So the bank, its history and its approval are those of
every recipe, and what a reflection is worth afterward is credited to its entry. The attempts on both sides of it are
rows beside: the text of an entry is the reflection alone, which is what it is searched by and what leaves the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crl.bank.retrieve import BankRetriever
from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.config import RetrievalConfig
from crl.recipes.erl.attempts import Pending, attempt_id, attempt_stage, entry_id_of, reflect_stage
from crl.recipes.erl.config import ErlConfig, MemoryConfig, config_of
from crl.recipes.erl.prompts import OK, Attempt, Memory
from crl.recipes.erl.rows import Reflection, RevisedAttempt
from crl.records import (
    Distillation,
    EntryScore,
    Episode,
    Operation,
    Retrieval,
    RetrievalCount,
    Turn,
    rows_of,
    rows_with,
    turns_by_episode,
)
from crl.rounds.context import BANK, StageContext
from crl.rounds.proposal import with_cuts
from crl.rounds.stage import SCORES

DISTILL = "distill"


def retrieved(ctx: StageContext, again: Sequence[Pending], revision: int) -> list[Retrieval]:
    """What the reflector is shown for each attempt, in their order: none of an empty memory.

    Rows are for the attempt that the reflection is to guide. Their counts are uses so far; none of them advances here.
    """
    config = config_of(ctx.method).memory
    if config is None or not again:
        return []
    bank = ctx.bank()
    if not len(bank):
        return []
    scores = ctx.rows(EntryScore, SCORES)
    counts = [RetrievalCount(entry_id=row.entry_id, count=row.uses, last_round=row.last_used_round) for row in scores]
    asked = [(attempt_id(each.task.episode_id, revision), each.task.family) for each in again]
    with ctx.timed("retrieval", len(again)):
        vectors_QD = ctx.services.embedder().embed_queries([each.task.query for each in again])
        if config.order == "similarity":
            settings = RetrievalConfig(
                embedder=config.embedder, top_k=config.shown, candidates=1, diversify=False, threshold=config.threshold
            )
            retriever = BankRetriever(
                bank, load_embeddings(ctx.run_path, bank.table), counts, settings, round=ctx.round,
                bank_round=ctx.round_of(BANK),
            )  # fmt: skip
            return [row for rows in retriever.retrieve_many(asked, vectors_QD, advance=False) for row in rows]
        uses = {row.entry_id: row.count for row in counts}
        return [
            row
            for (episode_id, family), query_D in zip(asked, vectors_QD, strict=True)
            for row in _newest(ctx, bank, config, episode_id, family, query_D, uses)
        ]


def memories_of(ctx: StageContext, rows: Sequence[Retrieval]) -> dict[str, Memory]:
    """Retrieved memories by the id of their entries, with the attempts that these keep."""
    if not rows:
        return {}
    table = rows_with(ctx.bank().table, "entry_id", {row.entry_id for row in rows})
    texts, kept = load_texts(ctx.run_path, table), dict[str, RevisedAttempt]()
    # An import brings texts alone, and so does a recipe before a fork.
    for number in sorted(set(table["created_round"].to_pylist()) if config_of(ctx.method).keeps_attempts else ()):
        if ctx.recipe.resolve(ctx.method, number, DISTILL, 0) is not None:
            own = rows_with(ctx.table_at(RevisedAttempt, number, DISTILL), "entry_id", table["entry_id"].to_pylist())
            kept |= {row.entry_id: row for row in rows_of(RevisedAttempt, own)}
    found = {}
    for entry_id, digest in zip(table["entry_id"].to_pylist(), table["content_digest"].to_pylist(), strict=True):
        row = kept.get(entry_id)
        found[entry_id] = Memory(texts[digest]) if row is None else Memory(texts[digest], row.first, row.revised)
    return found


def _newest(
    ctx: StageContext,
    bank: Snapshot,
    config: MemoryConfig,
    episode_id: str,
    family: str,
    query_D: NDArray[np.float32],
    uses: Mapping[str, int],
) -> Iterator[Retrieval]:
    """The newest entries, the last one first; how similar they are is recorded, and decides nothing."""
    table = bank.table if config.order == "last" else rows_with(bank.table, "family", [family])
    # A snapshot is by age: the newest are at its end.
    shown = table.take(np.arange(table.num_rows)[::-1][: config.shown])
    cosines: list[float] = (load_embeddings(ctx.run_path, shown) @ query_D).tolist() if shown.num_rows else []
    for rank, (entry, cosine) in enumerate(zip(shown.to_pylist(), cosines, strict=True)):
        yield Retrieval(
            episode_id=episode_id,
            round=ctx.round,
            bank_round=ctx.round_of(BANK),
            family=family,
            entry_id=entry["entry_id"],
            content_digest=entry["content_digest"],
            generation_id=entry["generation_id"],
            rank=rank,
            similarity=cosine,
            rank_score=-float(rank),
            count=uses.get(entry["entry_id"], 0),
            recent=False,
            score=-float(rank),
            chosen=True,
        )


def distill(ctx: StageContext) -> None:
    """What the round's reflections ask of the memory, in the order they were written."""
    config = config_of(ctx.method)
    outputs: list[Distillation] = []
    operations: list[Operation] = []
    for revision in range(1, config.revisions + 1):
        retries = {row.episode_id: row for row in ctx.rows(Episode, attempt_stage(revision))}
        for row in ctx.rows(Reflection, reflect_stage(revision)):
            operation = _operation(ctx, row, retries[row.retry_id])
            operations += [] if operation is None else [operation]
            outputs.append(_output(ctx, row, operation))
    ctx.write(Distillation, outputs)
    ctx.write(Operation, with_cuts(ctx, operations))
    if config.keeps_attempts:
        ctx.write(RevisedAttempt, _attempts(ctx, operations, config))


def _attempts(ctx: StageContext, operations: Sequence[Operation], config: ErlConfig) -> list[RevisedAttempt]:
    """What every entry that comes in keeps beside its text."""
    added = [operation for operation in operations if operation.kind == "add"]
    wanted = {name for operation in added for name in operation.episode_ids}
    episodes: dict[str, Episode] = {}
    taken: list[Turn] = []
    for revision in range(config.revisions + 1):
        episodes |= {row.episode_id: row for row in ctx.rows(Episode, attempt_stage(revision))}
        taken += rows_of(Turn, rows_with(ctx.table(Turn, attempt_stage(revision)), "episode_id", wanted))
    turns = turns_by_episode(taken)

    def text(name: str) -> str:
        return Attempt(episodes[name], tuple(turns.get(name, ())), "").text(config.attempt_characters)

    found = []
    for operation in added:
        first, revised = operation.episode_ids
        found.append(
            RevisedAttempt(
                entry_id=str(operation.entry_id), round=ctx.round, episode_id=first, retry_id=revised,
                first=text(first), revised=text(revised),
            )
        )  # fmt: skip
    return found


def _operation(ctx: StageContext, row: Reflection, retry: Episode) -> Operation | None:
    """`add` of a reflection that led to a success, `return` of one that did not; None of a malformed one."""
    if row.reason_code != OK:
        return None
    kept = retry.success
    return Operation(
        operation_id=f"{row.reflection_id}-o0",
        distillation_id=row.reflection_id,
        generation_id=row.generation_id,
        round=ctx.round,
        index=0,
        kind="add" if kept else "return",
        family=row.family,
        entry_id=entry_id_of(row.reflection_id) if kept else None,
        parents=[],
        episode_ids=[row.episode_id, row.retry_id],
        text=row.text if kept else None,
        embedder_cut=None,
    )


def _output(ctx: StageContext, row: Reflection, operation: Operation | None) -> Distillation:
    return Distillation(
        distillation_id=row.reflection_id,
        round=ctx.round,
        kind="distill",
        family=row.family,
        episode_id=row.episode_id,
        guiding_entry_id=None,
        source_entry_ids=row.entry_ids,
        generation_id=row.generation_id,
        format="lines",
        reason_code=row.reason_code,
        verdict="malformed" if operation is None else operation.kind,
        operations=0 if operation is None else 1,
        turns=row.turns,
        turns_shown=row.turns_shown,
    )
