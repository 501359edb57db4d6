"""The bank as stages see it: a snapshot's rows, its texts and embeddings, and a retriever over them."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.retrieve import BankRetriever, shared_with
from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.recipes.context import StageContext
from crl.records import Retrieval, RetrievalCount, Task


def open_retriever(
    ctx: StageContext, bank: Snapshot, counts: Sequence[RetrievalCount], *, bank_round: int
) -> BankRetriever:
    """A retriever over one snapshot; its index is cached beside the run and can be rebuilt."""
    return BankRetriever(
        bank.entries(),
        load_embeddings(ctx.run_path, bank.table),
        counts,
        ctx.method.retrieval,
        round=ctx.round,
        bank_round=bank_round,
        cache_dir=ctx.run_path / "cache",
    )


def retrieve_all(
    ctx: StageContext, retriever: BankRetriever, tasks: Sequence[Task], *, advance: bool = True
) -> list[Retrieval]:
    """Retrieve for tasks in order, a task or (`per: group`) a group at a time; rows of every candidate."""
    vectors: NDArray[np.float32] = ctx.services.embedder().embed([task.query for task in tasks])
    per_group = ctx.method.retrieval.per == "group"
    first_of_group: dict[int, list[Retrieval]] = {}
    rows: list[Retrieval] = []
    for task, vector in zip(tasks, vectors, strict=True):
        if per_group and task.group in first_of_group:
            rows += shared_with(first_of_group[task.group], task.episode_id)
            continue
        found = retriever.retrieve(task.episode_id, task.family, vector, advance=advance)
        first_of_group[task.group] = found
        rows += found
    return rows


def chosen_by_episode(retrievals: Sequence[Retrieval]) -> dict[str, Retrieval]:
    """The chosen retrieval of each guided episode."""
    return {row.episode_id: row for row in retrievals if row.chosen}


def texts_of(ctx: StageContext, bank: Snapshot, digests: Set[str]) -> dict[str, str]:
    """Texts by content digest, of those entries whose digest is asked for."""
    wanted = pa.array(sorted(digests), pa.string())
    return load_texts(ctx.run_path, bank.table.filter(pc.is_in(bank.table["content_digest"], value_set=wanted)))
