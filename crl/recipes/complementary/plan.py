"""Stage `plan`: which tasks a round plays, in which groups, and what guides each guided slot.

Retrieval happens here, once, in episode order: counters and diversification (eq. 6) cannot depend on how collecting
is sharded.
"""

from __future__ import annotations

from crl.recipes.complementary.bank_access import open_retriever, retrieve_all
from crl.recipes.complementary.config import config_of
from crl.records import FREE, GUIDED, Retrieval, RetrievalCount, Suppression, Task
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE
from crl.rounds.tasks import drawn_tasks


def plan(ctx: StageContext) -> None:
    """Draw the tasks of the round and retrieve an experience for every guided slot."""

    def streams(size: int) -> list[str]:
        guided = config_of(ctx.method).guided_members(size, ctx.round)
        return [GUIDED] * guided + [FREE] * (size - guided)

    tasks = drawn_tasks(ctx, streams)
    retrievals, counts, masked = _retrieve(ctx, tasks)
    ctx.write(Task, tasks)
    ctx.write(Retrieval, retrievals)
    ctx.write(RetrievalCount, counts)
    if config_of(ctx.method).suppress is not None:
        ctx.write(Suppression, masked)


def _retrieve(ctx: StageContext, tasks: list[Task]) -> tuple[list[Retrieval], list[RetrievalCount], list[Suppression]]:
    bank = ctx.bank()
    counts = ctx.rows(RetrievalCount, BEFORE)
    guided = [task for task in tasks if task.stream == GUIDED]
    if not len(bank) or not guided:
        return [], counts, []
    retriever = open_retriever(ctx, bank, counts, training=True)
    masked = [
        Suppression(family=family, entry_id=entry_id, content_digest=digest)
        for family, entry_id, digest in retriever.masked_rows()
    ]
    return retrieve_all(ctx, retriever, guided), retriever.counts(), masked
