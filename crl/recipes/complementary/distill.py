"""Stages `distill` and `merge`: what the extractor writes about this round's episodes, and about the bank itself.

Both have parts, as `collect` has: of distilling as many whole batches as hold the episodes of a wave, of merging as
many task families as walk side by side in one batch. So the batches are the same whoever runs the parts. There is one
part where texts are compared with all that were written before them (`duplicates: near`), or one walk goes through the
bank.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from crl.bank.consolidate import Consolidation
from crl.bank.duplicates import SimilarPairs
from crl.bank.snapshot import Snapshot
from crl.config import Method
from crl.extractor.distill import DistillItem, distill_wave, items_of
from crl.extractor.merge import run_merge
from crl.extractor.outputs import Distilled
from crl.recipes.complementary.bank_access import with_cuts
from crl.recipes.complementary.candidates import merge_candidates
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.proposal import disbelieved, rules_of
from crl.recipes.complementary.resembling import Resembling
from crl.records import Distillation, Episode, Generation, Operation, Resemblance, Turn
from crl.rounds.context import StageContext
from crl.rounds.weights import weights_of


def count_distill_parts(ctx: StageContext) -> int:
    """Waves of episodes to distill, in whole batches; one where there is nothing to distill."""
    return max(1, -(-len(_items(ctx)) // _width(ctx.method)))


def distill_part(ctx: StageContext, part: int) -> None:
    """One output per episode, with the extractor that the round reads."""
    config = config_of(ctx.method)
    weights = weights_of(ctx, "extractor")
    policy = ctx.services.policy("extractor", weights)
    width = _width(ctx.method)
    items = _items(ctx)[part * width : (part + 1) * width]
    results: list[Distilled] = []
    batch = config.distill.batch
    ctx.progress(0, len(items))
    for at in range(0, len(items), batch):
        results += distill_wave(
            policy,
            items[at : at + batch],
            role=ctx.method.role("extractor"),
            prompt=ctx.method.prompts["distill"],
            own=ctx.method.own_prompts("distill"),
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


def _items(ctx: StageContext) -> list[DistillItem]:
    return items_of(ctx.rows(Episode, "collect"), ctx.rows(Turn, "collect"), config_of(ctx.method).distill)


def _width(method: Method) -> int:
    """Episodes of a part."""
    config = config_of(method)
    if config.bank.duplicates == "near":
        return sys.maxsize
    batch, wave = config.distill.batch, method.rollout.wave_groups * method.rollout.group_size
    return -(-wave // batch) * batch


def merge_due(method: Method, round_number: int) -> bool:
    """After every `merge.every` rounds."""
    every = config_of(method).merge.every
    return every > 0 and round_number % every == 0


def count_merge_parts(ctx: StageContext) -> int:
    """Batches of task families, each with a walk of its own; one where they do not walk on their own."""
    config = config_of(ctx.method)
    if config.merge.scope == "bank" or config.bank.duplicates == "near":
        return 1
    return -(-len(ctx.method.families) // config.distill.batch)


def merge_part(ctx: StageContext, part: int) -> None:
    """Slide over the bank as it is with this round's distilled operations applied, before eviction.

    What each step asks for is applied at once, by the rules that will apply it in the round's consolidation: the next
    step shows the bank that comes of it.
    """
    config = config_of(ctx.method)
    bank, distilled = ctx.bank(), ctx.rows(Operation, "distill")
    resembling = _resembling(ctx, bank)
    if resembling is not None:
        resembling.know(distilled, ctx.rows(Resemblance, "distill"))
    alike = SimilarPairs() if resembling is None else resembling.alike
    consolidation = Consolidation(bank, rules_of(ctx.method), alike, round=ctx.round)
    consolidation.apply(distilled, disbelieved(ctx.method, ctx.round, ctx.rows, bank, distilled, alike))
    candidates = merge_candidates(ctx, consolidation.result())
    groups = candidates.groups
    if count_merge_parts(ctx) > 1:
        names, batch = sorted(family.name for family in ctx.method.families), config.distill.batch
        groups = {name: groups[name] for name in names[part * batch : (part + 1) * batch] if name in groups}

    def applied(operations: Sequence[Operation]) -> set[str]:
        if resembling is not None:
            resembling.find(operations)
        events = consolidation.apply(operations)
        return {event.operation_id for event in events if event.kind != "rejected" and event.operation_id is not None}

    weights = weights_of(ctx, "extractor")
    results = run_merge(
        ctx.services.policy("extractor", weights),
        groups,
        candidates.texts,
        applied=applied,
        role=ctx.method.role("extractor"),
        prompt=ctx.method.prompts["merge"],
        # A walk over the whole bank is no family's.
        own={} if config.merge.scope == "bank" else ctx.method.own_prompts("merge"),
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
