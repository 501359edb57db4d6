"""Stage `consolidate`: the operations of the round applied to the bank; a new snapshot, and an event for each."""

from __future__ import annotations

from crl.bank.consolidate import consolidate as apply_operations
from crl.bank.segments import new_segments, place
from crl.recipes.context import StageContext
from crl.records import BankEntry, BankEvent, EntryScore, Operation


def consolidate(ctx: StageContext) -> None:
    """Distilled operations first, then those of the merge, which were made for the bank with the former applied."""
    previous = ctx.rows(BankEntry, "consolidate", -1)
    operations = ctx.rows(Operation, "distill") + ctx.rows(Operation, "merge")
    result = apply_operations(
        previous,
        operations,
        ctx.rows(EntryScore, "credit", -1),
        ctx.method.bank,
        round=ctx.round,
        max_characters=ctx.method.distill.max_characters,
    )
    segments = new_segments(result.new_texts.values(), ctx.services.embedder())
    for relative, content in segments.files.items():
        ctx.share(relative, content)
    entries = place(result.entries, segments)
    ctx.write(BankEntry, entries)
    ctx.write(BankEvent, result.events)
    ctx.progress(len(operations), len(operations), bank=len(entries))
