"""Stages `distill` and `merge`: what the extractor writes about this round's episodes, and about the bank itself.

Both have parts, as `collect` has: of distilling as many whole batches as hold the episodes of a wave, of merging as
many task families as walk side by side in one batch. So the batches are the same whoever runs the parts. There is one
part where texts are compared with all that were written before them (`duplicates: near`), or one walk goes through the
bank. A merge shows the extractor all entries, or those that resemble another of the same scope: a task family, or the
whole bank (`merge.scope`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.consolidate import Consolidated
from crl.bank.duplicates import groups as duplicate_groups
from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.config import Method
from crl.extractor.distill import DistillItem, distill_wave, items_of, selected
from crl.extractor.merge import WHOLE_BANK, run_merge, whole_bank, whole_families
from crl.extractor.outputs import Distilled
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.resembling import Resembling
from crl.records import BankEntry, Distillation, Episode, Generation, Operation, Resemblance, Turn
from crl.rounds.context import StageContext
from crl.rounds.proposal import distilled_proposal, with_cuts
from crl.rounds.waves import wave_width
from crl.rounds.weights import weights_of


def count_distill_parts(ctx: StageContext) -> int:
    """Waves of outputs to write, in whole batches; one where there is nothing to distill."""
    return max(1, -(-len(_items(ctx)) // _width(ctx.method)))


def distill_part(ctx: StageContext, part: int) -> None:
    """One output per episode, or `distill.outputs`, with the extractor that the round reads."""
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
    config = config_of(ctx.method).distill
    items = items_of(ctx.rows(Episode, "collect"), ctx.rows(Turn, "collect"), config)
    chosen = selected(items, config.select, lambda name: ctx.seed(name))
    return [replace(item, candidate=number) for item in chosen for number in range(config.outputs)]


def _width(method: Method) -> int:
    """Outputs of a part."""
    config = config_of(method)
    if config.bank.duplicates == "near":
        return sys.maxsize
    batch = config.distill.batch
    return -(-wave_width(method) // batch) * batch


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
    proposal = distilled_proposal(ctx)
    resembling = Resembling(ctx, proposal.previous) if config.bank.duplicates == "near" else None
    if resembling is not None:
        resembling.know(proposal.operations, proposal.resemblances)
    consolidation = proposal.preview(None if resembling is None else resembling.alike)
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


def _write(ctx: StageContext, results: Sequence[Distilled]) -> None:
    ctx.write(Distillation, [each.distillation for each in results])
    ctx.write(Operation, with_cuts(ctx, [operation for each in results for operation in each.operations]))
    ctx.write(Generation, [each.generation for each in results])


@dataclass(frozen=True)
class Candidates:
    """Entries to be merged."""

    groups: dict[str, list[list[BankEntry]]]
    """By family, in the order of names, or in one walk; groups by the age of their oldest entry, entries likewise."""
    texts: dict[str, str]
    """Texts of these entries, by content digest."""


def merge_candidates(ctx: StageContext, preview: Consolidated) -> Candidates:
    """The candidates among the entries of a bank whose new texts are not stored yet."""
    bank = preview.snapshot
    if config_of(ctx.method).merge.candidates == "all":
        walks = whole_bank if config_of(ctx.method).merge.scope == "bank" else whole_families
        return Candidates(walks(bank.entries()), _texts(ctx, bank.table, preview))
    root_N = _roots(ctx, bank, preview)
    counts_N = np.bincount(root_N, minlength=len(bank))
    shown_N = counts_N[root_N] > 1
    shown = np.flatnonzero(shown_N)
    grouped: dict[int, list[BankEntry]] = {}
    for root, entry in zip(root_N[shown].tolist(), bank.taken(shown.tolist()), strict=True):
        grouped.setdefault(root, []).append(entry)
    # Rows are in order of age, so a group's root is its oldest entry.
    groups: dict[str, list[list[BankEntry]]] = {}
    for root in sorted(grouped):
        walk = WHOLE_BANK if config_of(ctx.method).merge.scope == "bank" else grouped[root][0].family
        groups.setdefault(walk, []).append(grouped[root])
    texts = _texts(ctx, bank.table.take(pa.array(shown)), preview)
    return Candidates({name: groups[name] for name in sorted(groups)}, texts)


def _texts(ctx: StageContext, entries: pa.Table, preview: Consolidated) -> dict[str, str]:
    return {**load_texts(ctx.run_path, entries.filter(_stored(entries))), **preview.new_texts}


def _roots(ctx: StageContext, bank: Snapshot, preview: Consolidated) -> NDArray[np.int64]:
    """The oldest row [N] of the group every row is in: rows of a scope that resemble each other, over others too."""
    vectors_ND = _vectors(ctx, bank.table, preview)
    if config_of(ctx.method).merge.scope == "bank":
        return duplicate_groups(vectors_ND, config_of(ctx.method).merge.similarity)
    root_N = np.arange(len(bank), dtype=np.int64)
    families = bank.table["family"].combine_chunks().dictionary_encode()
    codes_N = families.indices.to_numpy()
    for code in range(len(families.dictionary)):
        rows = np.flatnonzero(codes_N == code)
        root_N[rows] = rows[duplicate_groups(vectors_ND[rows], config_of(ctx.method).merge.similarity)]
    return root_N


def _vectors(ctx: StageContext, entries: pa.Table, preview: Consolidated) -> NDArray[np.float32]:
    """Embeddings [N, D] of the rows: those of texts that this round adds come from the embedder."""
    embedder = ctx.services.embedder()
    stored = _stored(entries)
    stored_N = stored.to_numpy(zero_copy_only=False)
    vectors_ND = np.empty((entries.num_rows, embedder.dimension), dtype=np.float32)
    if stored_N.any():
        vectors_ND[stored_N] = load_embeddings(ctx.run_path, entries.filter(stored))
    new = entries["content_digest"].filter(pc.invert(stored)).to_pylist()
    if new:
        vectors_ND[~stored_N] = embedder.embed([preview.new_texts[digest] for digest in new])
    return vectors_ND


def _stored(entries: pa.Table) -> pa.Array:
    """Which rows have their text in a file already."""
    return pc.not_equal(entries["segment"], "").combine_chunks()
