"""Stage `plan`: which tasks a round plays, in which groups, and what guides each guided slot; and the retriever for it.

Retrieval happens here, once, in episode order: counters and diversification (eq. 6, `crl/bank/retrieve.py`) cannot
depend on how collecting is sharded. Evaluation and questions search with the same retriever, and move no counter.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import pyarrow as pa

from crl.bank.changes import summary_of
from crl.bank.retrieve import BankRetriever, EarlierBank, shared_with
from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.config import Method, RetrievalConfig
from crl.recipes.complementary.config import ACTOR, config_of
from crl.recipes.complementary.mechanisms.suppression import masked
from crl.records import FREE, GUIDED, BankEntry, Retrieval, RetrievalCount, Suppression, Task, rows_with
from crl.rounds.context import BANK, StageContext
from crl.rounds.proposal import partitions_of
from crl.rounds.stage import BEFORE, draw_of
from crl.rounds.tasks import drawn_tasks
from crl.run.cache import Shelf


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round and retrieve an experience for every guided slot."""

    def streams(size: int) -> list[str]:
        guided = config_of(ctx.method).guided_members(size, ctx.round)
        return [GUIDED] * guided + [FREE] * (size - guided)

    config, further = config_of(ctx.method), draw_of(ctx.stage.name)[1] > 1
    pooled = further and config.actor_objective.advantage == "pooled"
    # What teaches nothing is drawn again for the actor's update alone.
    tasks = [] if further and not config.trains(ACTOR, ctx.round) else drawn_tasks(ctx, streams, pooled=pooled)
    retrievals, counts, suppressed = _retrieve(ctx, tasks)
    ctx.write(Task, tasks)
    ctx.write(Retrieval, retrievals)
    ctx.write(RetrievalCount, counts)
    if config_of(ctx.method).suppress is not None:
        ctx.write(Suppression, suppressed)


def _retrieve(ctx: StageContext, tasks: list[Task]) -> tuple[list[Retrieval], list[RetrievalCount], list[Suppression]]:
    bank = ctx.bank()
    counts = counters(ctx, BEFORE)
    guided = [task for task in tasks if task.stream == GUIDED]
    taught = [task for task in tasks if task.stream == FREE] if config_of(ctx.method).teaches(ctx.round) else []
    if not len(bank) or not (guided or taught):
        return [], counts, []
    retriever, harmful = open_retriever(ctx, bank, counts, training=True), masked(ctx, training=False)
    suppressed = [
        Suppression(
            family=family,
            entry_id=entry_id,
            content_digest=digest,
            withdrawn=digest not in harmful.get(family, frozenset()),
        )
        for family, entry_id, digest in retriever.masked_rows()
    ]
    found, counts = retrieve_all(ctx, retriever, guided), retriever.counts()
    # As if these were guided next; nobody is shown it, so the counters of the record stay those of before.
    beside = retrieve_all(ctx, retriever, taught) if taught else []
    found += [replace(row, chosen=False, teaches=True) for row in beside if row.chosen]
    return found, counts, suppressed


def counters(ctx: StageContext, read: str) -> list[RetrievalCount]:
    """The counters that the last plan of a read left: each draw goes on with those of the one before."""
    return list({row.entry_id: row for row in ctx.rows(RetrievalCount, read)}.values())


def retrieval_of(method: Method, *, training: bool) -> RetrievalConfig:
    """How a method retrieves. Exploration belongs to training: elsewhere the most relevant entry is taken, unless the
    method says otherwise."""
    config = config_of(method).retrieval
    if training or config.diversify_evaluation:
        return config
    return config.model_copy(update={"diversify": False})


def open_retriever(
    ctx: StageContext, bank: Snapshot, counts: Sequence[RetrievalCount], *, training: bool
) -> BankRetriever:
    """A retriever over the bank that the stage reads; what its index caches is beside the run and can be rebuilt."""
    config = retrieval_of(ctx.method, training=training)
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
        masked=masked(ctx, training=training),
    )


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
    ctx.provenance["index"] = retriever.kinds
    if not per_group:
        return [row for rows in found for row in rows]
    of_group = {task.group: rows for task, rows in zip(asking, found, strict=True)}
    return [row for task in tasks for row in shared_with(of_group[task.group], task.episode_id)]


def texts_of(ctx: StageContext, bank: Snapshot, digests: Set[str]) -> dict[str, str]:
    """Texts by content digest, of those entries whose digest is asked for."""
    return load_texts(ctx.run_path, rows_with(bank.table, "content_digest", digests))
