"""What the merge stage shows the extractor: all entries, or those that resemble another of the same scope.

The scope is a task family, or the whole bank (`merge.scope`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.consolidate import Consolidated
from crl.bank.duplicates import groups as duplicate_groups
from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.extractor.merge import WHOLE_BANK, whole_bank, whole_families
from crl.recipes.complementary.config import config_of
from crl.records import BankEntry
from crl.rounds.context import StageContext


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
