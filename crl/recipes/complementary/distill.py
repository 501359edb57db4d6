"""Stages `distill` and `merge`: what the extractor writes about this round's episodes, and about the bank itself."""

from __future__ import annotations

from collections.abc import Sequence

from crl.bank.consolidate import Consolidation
from crl.bank.resemblance import Alike
from crl.bank.snapshot import Snapshot
from crl.config import Method
from crl.extractor.distill import distill_wave, items_of
from crl.extractor.merge import run_merge
from crl.extractor.outputs import Distilled
from crl.recipes.complementary.bank_access import with_cuts
from crl.recipes.complementary.candidates import merge_candidates
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.proposal import rules_of
from crl.recipes.complementary.resembling import Resembling
from crl.recipes.context import StageContext
from crl.recipes.weights import weights_of
from crl.records import Distillation, Episode, Generation, Operation, Resemblance, Turn


def distill(ctx: StageContext) -> None:
    """One output per episode, with the extractor that the round reads."""
    config = config_of(ctx.method)
    weights = weights_of(ctx, "extractor")
    policy = ctx.services.policy("extractor", weights)
    items = items_of(ctx.rows(Episode, "collect"), ctx.rows(Turn, "collect"), config.distill)
    results: list[Distilled] = []
    batch = config.distill.batch
    ctx.progress(0, len(items))
    for at in range(0, len(items), batch):
        results += distill_wave(
            policy,
            items[at : at + batch],
            role=ctx.method.role("extractor"),
            prompt=ctx.method.prompts["distill"],
            config=config.distill,
            seed_of=lambda distillation_id: ctx.seed(distillation_id),
            weights_digest=weights.weights_digest,
            round=ctx.round,
        )
        malformed = sum(each.distillation.verdict == "malformed" for each in results)
        ctx.progress(len(results), len(items), malformed=malformed)
    _write(ctx, results)
    if config_of(ctx.method).bank.duplicates == "near":
        resembling = Resembling(ctx, ctx.bank())
        resembling.find([operation for each in results for operation in each.operations])
        ctx.write(Resemblance, resembling.rows)


def merge_due(method: Method, round_number: int) -> bool:
    """After every `merge.every` rounds."""
    every = config_of(method).merge.every
    return every > 0 and round_number % every == 0


def merge(ctx: StageContext) -> None:
    """Slide over the bank as it is with this round's distilled operations applied, before eviction.

    What each step asks for is applied at once, by the rules that will apply it in the round's consolidation: the next
    step shows the bank that comes of it.
    """
    config = config_of(ctx.method)
    bank, distilled = ctx.bank(), ctx.rows(Operation, "distill")
    resembling = _resembling(ctx, bank)
    if resembling is not None:
        resembling.know(distilled, ctx.rows(Resemblance, "distill"))
    alike = Alike() if resembling is None else resembling.alike
    consolidation = Consolidation(bank, rules_of(ctx.method), alike, round=ctx.round)
    consolidation.apply(distilled)
    candidates = merge_candidates(ctx, consolidation.result())

    def applied(operations: Sequence[Operation]) -> set[str]:
        if resembling is not None:
            resembling.find(operations)
        events = consolidation.apply(operations)
        return {event.operation_id for event in events if event.kind != "rejected" and event.operation_id is not None}

    weights = weights_of(ctx, "extractor")
    results = run_merge(
        ctx.services.policy("extractor", weights),
        candidates.groups,
        candidates.texts,
        applied=applied,
        role=ctx.method.role("extractor"),
        prompt=ctx.method.prompts["merge"],
        config=config.merge,
        output_format=config.distill,
        seed_of=lambda distillation_id: ctx.seed(distillation_id),
        weights_digest=weights.weights_digest,
        round=ctx.round,
    )
    _write(ctx, results)
    if resembling is not None:
        ctx.write(Resemblance, resembling.rows)


def _resembling(ctx: StageContext, bank: Snapshot) -> Resembling | None:
    """Finds what new texts resemble, where near-duplicates are refused."""
    return Resembling(ctx, bank) if config_of(ctx.method).bank.duplicates == "near" else None


def _write(ctx: StageContext, results: Sequence[Distilled]) -> None:
    ctx.write(Distillation, [each.distillation for each in results])
    ctx.write(Operation, with_cuts(ctx, [operation for each in results for operation in each.operations]))
    ctx.write(Generation, [each.generation for each in results])
