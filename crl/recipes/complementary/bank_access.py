"""The bank as stages see it: a snapshot's rows, its texts and embeddings, and a retriever over them."""

from __future__ import annotations

from collections.abc import Sequence, Set

import pyarrow as pa

from crl.bank.changes import summary_of
from crl.bank.retrieve import BankRetriever, EarlierBank, shared_with
from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.credit.effects import suppressed_texts
from crl.recipes.complementary.config import config_of
from crl.records import BankEntry, Retrieval, RetrievalCount, Task, TextEffect, rows_with
from crl.rounds.context import BANK, StageContext
from crl.rounds.proposal import partitions_of
from crl.run.cache import Shelf

EFFECTS = "effects"
"""Name of the read of what texts have done so far, where harmful ones are suppressed."""


def open_retriever(
    ctx: StageContext, bank: Snapshot, counts: Sequence[RetrievalCount], *, training: bool
) -> BankRetriever:
    """A retriever over the bank that the stage reads; what its index caches is beside the run and can be rebuilt.

    Exploration belongs to training: elsewhere the most relevant entry is taken, unless the method says otherwise.
    """
    config = config_of(ctx.method).retrieval
    if not training and not config.diversify_evaluation:
        config = config.model_copy(update={"diversify": False})
    bank_round = ctx.round_of(BANK)
    _, table_of = ctx.bank_tables()

    def base_entries() -> pa.Table | None:
        base_round = summary_of(bank_round, table_of).base_round
        return None if base_round == bank_round else table_of(BankEntry, base_round)

    return BankRetriever(
        bank,
        load_embeddings(ctx.run_path, bank.table),
        counts,
        config,
        round=ctx.round,
        bank_round=bank_round,
        base=EarlierBank(base_entries, lambda entries: load_embeddings(ctx.run_path, entries)),
        cache=Shelf(ctx.run_path),
        partitions=partitions_of(ctx.method),
        masked=_suppressed(ctx),
    )


def _suppressed(ctx: StageContext) -> dict[str, frozenset[str]]:
    """Texts that are passed over, by family, as the round that the bank is of left them."""
    return {} if config_of(ctx.method).suppress is None else suppressed_texts(ctx.rows(TextEffect, EFFECTS))


def retrieve_all(
    ctx: StageContext, retriever: BankRetriever, tasks: Sequence[Task], *, advance: bool = True
) -> list[Retrieval]:
    """Retrieve for tasks in order, a task or (`per: group`) a group at a time; rows of every candidate."""
    per_group = config_of(ctx.method).retrieval.per == "group"
    first_of_group: dict[int, Task] = {}
    for task in tasks:
        first_of_group.setdefault(task.group, task)
    asking = list(first_of_group.values()) if per_group else list(tasks)
    embedder = ctx.services.embedder()  # its loading is no part of a retrieval's time
    with ctx.timed("retrieval", len(asking)):
        vectors_QD = embedder.embed_queries([task.query for task in asking])
        asked = [(task.episode_id, task.family) for task in asking]
        found = retriever.retrieve_many(asked, vectors_QD, advance=advance)
    ctx.notes["index"] = retriever.kinds
    if not per_group:
        return [row for rows in found for row in rows]
    of_group = {task.group: rows for task, rows in zip(asking, found, strict=True)}
    return [row for task in tasks for row in shared_with(of_group[task.group], task.episode_id)]


def texts_of(ctx: StageContext, bank: Snapshot, digests: Set[str]) -> dict[str, str]:
    """Texts by content digest, of those entries whose digest is asked for."""
    return load_texts(ctx.run_path, rows_with(bank.table, "content_digest", digests))
