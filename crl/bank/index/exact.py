"""Exact search: a query is compared with every row, on a GPU where FAISS can (`library` says whether).

What is found is never ranked by FAISS's own numbers: candidates are read generously and ranked by a float64 cosine
computed here, so that CPU, GPU, batch size and thread count cannot change a result.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crl.bank.index.library import gpu_resources, load_faiss, searcher

GPU_BYTES = 8 << 30
"""Largest embeddings that are put on a GPU, which models share: 5.5 million rows of 384 dimensions."""
_GPU_LARGEST_K = 2048
_MARGIN = 1e-5
"""More than the float32 rounding of a unit inner product: what is farther below the last candidate cannot belong in."""
_ONE_AT_A_TIME = threading.Lock()
"""FAISS's resources of a GPU, which all indexes of this process share, serve one thread."""

Nearest = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Rows and cosines, the nearest first."""


def similarities(embeddings_ND: NDArray[np.float32], query_D: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosines [N] of unit vectors in float64; a row's value does not depend on the rows beside it (no BLAS)."""
    products_ND = embeddings_ND.astype(np.float64) * query_D.astype(np.float64)
    return np.asarray(products_ND.sum(axis=1), dtype=np.float64)


def ranked(
    embeddings_ND: NDArray[np.float32], rows_K: NDArray[np.int64], query_D: NDArray[np.float32], count: int
) -> Nearest:
    """The `count` nearest of some rows (distinct, in any order), by float64 cosine and then by row.

    A float32 product drops those that cannot be among them first: exact cosines cost ten times as much.
    """
    vectors_KD = embeddings_ND[rows_K]
    if len(rows_K) > count:
        rough_K = np.einsum("kd,d->k", vectors_KD, query_D)  # BLAS would wake its threads for so little
        near_K = rough_K >= np.partition(rough_K, -count)[-count] - 2 * _MARGIN
        rows_K, vectors_KD = rows_K[near_K], vectors_KD[near_K]
    values_K = similarities(vectors_KD, query_D)
    best_K = np.lexsort((rows_K, -values_K))[:count]
    return rows_K[best_K], values_K[best_K]


class ExactIndex:
    """All embeddings of one scope, searched exhaustively."""

    kind = "exact"

    def __init__(self, embeddings_ND: NDArray[np.float32], *, gpu: bool | None = None) -> None:
        """`gpu` None uses one where there is one and the embeddings are not too large; a full one is done without."""
        self.embeddings_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)
        self._gpu_index: Any | None = None
        if fits_gpu(self.embeddings_ND.shape) if gpu is None else gpu:
            self._gpu_index = _on_gpu(self.embeddings_ND)

    @property
    def on_gpu(self) -> bool:
        """Whether searches run on a GPU."""
        return self._gpu_index is not None

    def nearest(self, queries_QD: NDArray[np.float32], count: int) -> list[Nearest]:
        """Rows and cosines of the `count` nearest embeddings of each query (fewer where there are fewer).

        Equal cosines are in row order, also where they straddle the cut. A query's answer does not depend on the
        others.
        """
        total = len(self.embeddings_ND)
        count = min(count, total)
        if count == 0:
            return [(np.empty(0, np.int64), np.empty(0, np.float64)) for _ in queries_QD]
        found: list[Nearest | None] = [None] * len(queries_QD)
        left = list(range(len(queries_QD)))
        read = min(total, count + 16)
        while left:
            values_LK, rows_LK = self._search(queries_QD[left], read)
            again = []
            for place, values_K, rows_K in zip(left, values_LK, rows_LK, strict=True):
                # Whatever was not read is below the last value: enough below the cut, none of it belongs in.
                if read == total or values_K[-1] < values_K[count - 1] - 2 * _MARGIN:
                    found[place] = ranked(self.embeddings_ND, rows_K, queries_QD[place], count)
                else:
                    again.append(place)
            left, read = again, min(total, read * 4)
        return [each for each in found if each is not None]

    def _search(self, queries_QD: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inner products and rows [Q, K], the largest first, in float32."""
        queries_QD = np.ascontiguousarray(queries_QD, dtype=np.float32)
        if self._gpu_index is not None and count <= _GPU_LARGEST_K:
            with _ONE_AT_A_TIME:
                values_QK, rows_QK = self._gpu_index.search(queries_QD, count)
        else:
            faiss = load_faiss()
            values_QK, rows_QK = faiss.knn(queries_QD, self.embeddings_ND, count, faiss.METRIC_INNER_PRODUCT)
        return values_QK, rows_QK


def fits_gpu(shape: tuple[int, ...]) -> bool:
    """Whether float32 embeddings of this shape are searched on a GPU: there is one, and they are not too large."""
    return 4 * int(np.prod(shape)) <= GPU_BYTES and searcher().gpu


def _on_gpu(embeddings_ND: NDArray[np.float32]) -> Any | None:
    """A flat index on the first GPU; None where it has too little memory left: the CPU finds the same."""
    faiss = load_faiss()
    try:
        with _ONE_AT_A_TIME:
            index = faiss.GpuIndexFlatIP(gpu_resources(), embeddings_ND.shape[1], faiss.GpuIndexFlatConfig())
            index.add(embeddings_ND)
    except RuntimeError:
        return None
    return index
