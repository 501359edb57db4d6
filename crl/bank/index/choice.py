"""Which index a scope gets, and what of an approximate one is cached.

Chosen by size and hardware: exact search up to :data:`EXACT_ROWS` rows, or on a GPU as long as the embeddings fit
there; above, the approximate index. The method can ask for either.

A quantizer is learned from the smallest content digests (any text is as likely to be among them) of an earlier bank
that the record names, its last *base*: as long as the base stays, a round encodes its new texts only. A scope that has
outgrown its base (:data:`OUTGROWN`) learns from itself. Cached are the quantizer, and the codes of the scope's texts:
both derive from rows alone, so a cache that is missing, damaged or of another round changes nothing but the time.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
from numpy.typing import NDArray

from crl.bank.index.approximate import SAMPLE_A_LIST, ApproximateIndex, Codes, Quantizer, Vectors, lists_for
from crl.bank.index.exact import ExactIndex, fits_gpu
from crl.errors import DiskFull, RunDirectoryUnusable
from crl.run.cache import Shelf

EXACT_ROWS = 30_000
"""About what two cores search exactly for a batch of 32 in 50 ms (benchmarks/bank_scale.py)."""
OUTGROWN = 2
"""A scope with more than so many times the rows that its base had learns its quantizer from its own rows."""
KEPT = 32
"""Quantizers, and codes of scopes, that a cache keeps; of one quantizer the codes of two rounds."""
_FORM = "1"
"""Part of every key: another one after a change of what is cached."""

IndexKind = Literal["exact", "approximate"]


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """Some rows of a bank: those that a query of one family may find."""

    embeddings_ND: Vectors
    """Unit vectors of the whole bank."""
    rows_N: NDArray[np.int64]
    """Rows of the scope, ascending."""
    digests: pa.Array
    """Content digests of these rows."""

    def vectors(self, rows: NDArray[np.int64]) -> Vectors:
        """Vectors of rows counted inside the scope."""
        return self.embeddings_ND[self.rows_N[rows]]


@dataclasses.dataclass(frozen=True, slots=True)
class Base:
    """What a scope held in an earlier bank."""

    digests: pa.Array
    vectors: Callable[[NDArray[np.int64]], Vectors]
    """Vectors of some of its rows."""


def chosen_kind(index: str, rows: int, dimension: int) -> IndexKind:
    """The index of a scope of that size under `retrieval.index`."""
    if index == "exact" or (index == "auto" and (rows <= EXACT_ROWS or fits_gpu((rows, dimension)))):
        return "exact"
    return "approximate"


def open_index(
    scope: Scope, index: str, *, base: Callable[[], Base | None] | None = None, cache: Shelf | None = None
) -> ExactIndex | ApproximateIndex:
    """The index of a scope under `retrieval.index`; rows that it finds are counted inside the scope.

    `base` is asked only where a quantizer is needed; without one, or with None, the scope learns from itself. Without
    a `cache`, or where it cannot be written, everything is made in memory.
    """
    rows, dimension = len(scope.rows_N), scope.embeddings_ND.shape[1]
    if rows == 0 or chosen_kind(index, rows, dimension) == "exact":
        whole = rows == len(scope.embeddings_ND)
        return ExactIndex(scope.embeddings_ND if whole else scope.embeddings_ND[scope.rows_N])
    learned_from = base() if base is not None else None
    if learned_from is None or rows > OUTGROWN * len(learned_from.digests):
        learned_from = Base(scope.digests, scope.vectors)
    quantizer = _quantizer(learned_from, cache)
    return ApproximateIndex(scope.embeddings_ND, scope.rows_N, quantizer, _codes(scope, quantizer, cache))


def _quantizer(base: Base, cache: Shelf | None) -> Quantizer:
    lists = lists_for(len(base.digests))
    by_digest = pc.sort_indices(base.digests)
    ordered = base.digests.take(by_digest)
    # A text that appears twice counts once: which of its rows would come first does not follow from its digest.
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(first)[: SAMPLE_A_LIST * lists]
    sample = by_digest.to_numpy()[places]
    if cache is None:
        return Quantizer.learn(base.vectors(sample), lists)
    key = f"quantizer-{_sha256([_FORM, str(lists), *ordered.take(pa.array(places)).to_pylist()])}"

    def build(directory: Path) -> None:
        made = Quantizer.learn(base.vectors(sample), lists)
        np.save(directory / "centroids.npy", made.centroids_LD)
        np.save(directory / "deviations.npy", made.deviations_D)

    try:
        directory = cache.made(key, build)
        cache.keep("quantizer-", KEPT)
        return Quantizer(np.load(directory / "centroids.npy"), np.load(directory / "deviations.npy"))
    except (OSError, DiskFull, RunDirectoryUnusable):
        return Quantizer.learn(base.vectors(sample), lists)


def _codes(scope: Scope, quantizer: Quantizer, cache: Shelf | None) -> Codes:
    if cache is None:
        return quantizer.encode(scope.embeddings_ND, scope.rows_N)
    prefix = f"codes-{quantizer.digest()[:32]}-"

    def build(directory: Path) -> None:
        earlier = cache.newest(prefix)
        known = None if earlier is None else feather.read_table(earlier / "codes.arrow", memory_map=False)
        feather.write_feather(_encoded(scope, quantizer, known), directory / "codes.arrow", compression="uncompressed")

    try:
        directory = cache.made(prefix + _sha256([_FORM, *scope.digests.to_pylist()])[:32], build)
        cache.keep(prefix, 2)
        cache.keep("codes-", KEPT)
        table = feather.read_table(directory / "codes.arrow", memory_map=False)
    except (OSError, DiskFull, RunDirectoryUnusable):
        return quantizer.encode(scope.embeddings_ND, scope.rows_N)
    return _unpacked(table, np.arange(len(scope.rows_N)))


def _encoded(scope: Scope, quantizer: Quantizer, known: pa.Table | None) -> pa.Table:
    """Digests, lists and codes of a scope; those of texts that `known` holds are taken over."""
    if known is None or not known.num_rows:
        codes = quantizer.encode(scope.embeddings_ND, scope.rows_N)
    else:
        places = pc.index_in(scope.digests, value_set=known["digest"].combine_chunks())
        held = places.is_valid().to_numpy(zero_copy_only=False)
        codes = _unpacked(known, places.fill_null(0).to_numpy())
        fresh = quantizer.encode(scope.embeddings_ND, scope.rows_N[~held])
        codes.lists_N[~held], codes.codes_NB[~held] = fresh.lists_N, fresh.codes_NB
    width = codes.codes_NB.shape[1]
    packed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(codes.codes_NB), [None, pa.py_buffer(np.ascontiguousarray(codes.codes_NB))]
    )
    return pa.table({"digest": scope.digests, "list": pa.array(codes.lists_N), "code": packed})


def _unpacked(table: pa.Table, rows_N: NDArray[np.int64]) -> Codes:
    packed = table["code"].combine_chunks()
    codes_NB = np.frombuffer(packed.buffers()[1], np.uint8).reshape(-1, packed.type.byte_width)
    return Codes(table["list"].to_numpy()[rows_N].astype(np.int32), codes_NB[rows_N])


def _sha256(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
