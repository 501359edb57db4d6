"""Stage `consolidate`: the operations of the round applied to the bank; its changes, an event for each operation."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from crl.bank.changes import Change, applied, files_of, stored, summary_of
from crl.bank.segments import new_segments, place
from crl.bank.snapshot import Snapshot
from crl.recipes.complementary.approve import refusals
from crl.records import Approval, BankChange, BankEntry, BankEvent, BankSnapshot
from crl.rounds.context import StageContext
from crl.rounds.proposal import proposal_of


def consolidate(ctx: StageContext) -> None:
    """Apply what the round proposes; operations that a person refused change nothing."""
    proposal = proposal_of(ctx.method, ctx.round, ctx.rows, ctx.bank)
    result = proposal.applied(refusals(ctx.rows(Approval, "approve")))
    round_before, table_of = ctx.bank_tables()
    known, summary = {}, None
    if round_before is not None:
        known, summary = files_of(result.new_texts, round_before, table_of), summary_of(round_before, table_of)
    new = [text for digest, text in result.new_texts.items() if digest not in known]
    segments = new_segments(new, ctx.services.embedder())
    for relative, content in segments.files.items():
        ctx.share(relative, content)
    publish(ctx, proposal.previous.table, summary, place(result.changes, segments, known), result.events)
    ctx.progress(len(proposal.operations), len(proposal.operations), bank=result.size)


def publish(
    ctx: StageContext,
    before: pa.Table,
    summary: BankSnapshot | None,
    changes: list[Change],
    events: Iterable[BankEvent],
) -> None:
    """Write a bank as its changes to the rows `before`, which `summary` sums up, and whole where a base is due."""
    storage = stored(summary, changes, round=ctx.round)
    ctx.write_table(BankChange, storage.changes)
    ctx.write(BankSnapshot, [storage.summary])
    if storage.base:
        ctx.write_table(BankEntry, Snapshot(ctx.round, applied(before, [storage.changes])).table)
    ctx.write(BankEvent, events)
