"""Stage `consolidate`: the operations of the round applied to the bank; a new snapshot, and an event for each."""

from __future__ import annotations

from crl.bank.segments import new_segments, place
from crl.recipes.approve import refusals
from crl.recipes.context import StageContext
from crl.recipes.proposal import proposal_of
from crl.records import Approval, BankEntry, BankEvent


def consolidate(ctx: StageContext) -> None:
    """Apply what the round proposes; operations that a person refused change nothing."""
    proposal = proposal_of(ctx.method, ctx.round, ctx.rows)
    result = proposal.applied(refusals(ctx.rows(Approval, "approve")))
    segments = new_segments(result.new_texts.values(), ctx.services.embedder())
    for relative, content in segments.files.items():
        ctx.share(relative, content)
    entries = place(result.entries, segments)
    ctx.write(BankEntry, entries)
    ctx.write(BankEvent, result.events)
    ctx.progress(len(proposal.operations), len(proposal.operations), bank=len(entries))
