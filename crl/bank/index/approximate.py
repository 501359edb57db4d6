"""Approximate search for large scopes: inverted lists over short codes (FAISS), candidates ranked by exact cosines.

A **quantizer** is learned from a sample: centroids, each the center of one list, and levels for what is left of a
vector after its centroid is taken off, two bits a dimension. A vector's list and code depend on the quantizer and on
the vector alone. A query reads the codes of its nearest lists, and the best of them are ranked as exact search ranks.

What is found may depend on nothing but the rows: not on threads, the other queries of a batch, or what was cached.
Floating-point sums would make it: BLAS adds in another order with other threads and shapes, and one different last bit
in training moves lists. So everything is computed in whole numbers held in float32: vectors times :data:`_SCALE`,
rounded, and centroids rounded as well. Every product and partial sum then stays below 2^24, where float32 is exact in
any order. A graph (HNSW) has no such form: it depends on the order in which rows came, and takes minutes to build.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crl.bank.index.exact import Nearest, ranked
from crl.bank.index.library import load_faiss

ROWS_A_LIST = 500
"""Rows of a list on average, to the next power of two of lists: fewer take longer to learn, more longer to read."""
SAMPLE_A_LIST = 48
"""Rows of the sample a list."""
PROBED = 8
"""A query reads one list in so many, but at least :data:`LEAST_PROBED`. Over a million rows (MiniLM embeddings of
sentences, and mixtures of them) recall@16 is 0.96; with one in 16 it is 0.93, with one in 4 0.99 for twice the time."""
LEAST_PROBED = 128
READ = 8
"""Candidates ranked exactly for each one asked for: with twice as many, recall grows by 0.001."""
_LEAST_READ = 128
_SCALE = 2000.0
"""|x|² + |c|² + 2·x·c of a unit vector and a centroid stays below 4 · 2020² < 2^24."""
_ROUNDS = 10
"""k-means iterations."""
_LEVELS = np.array([-1.5104, -0.4528, 0.4528, 1.5104])
"""The four levels of a normal variable of deviation 1 with the least squared error (Lloyd 1982, Max 1960)."""
_BLOCK = 16_384
_PER_QUERY = 11
"""FAISS's way through the lists a query at a time: what it finds does not depend on the others of the batch."""

Vectors = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Codes:
    """Lists and codes of some rows."""

    lists_N: NDArray[np.int32]
    codes_NB: NDArray[np.uint8]
    """Two bits a dimension, B = D/4 bytes."""


class Quantizer:
    """What turns vectors into lists and codes."""

    def __init__(self, centroids_LD: NDArray[np.float32], deviations_D: NDArray[np.float32]) -> None:
        """`centroids_LD` in whole numbers; `deviations_D` of what is left of a vector, in the same scale. D is even."""
        faiss = load_faiss()

        self.centroids_LD, self.deviations_D = centroids_LD, deviations_D
        self._nearest_list = faiss.IndexFlatL2(centroids_LD.shape[1])
        self._nearest_list.add(centroids_LD)
        levels_D4 = np.rint(deviations_D[:, None] * _LEVELS[None, :]).astype(np.float32)
        pairs_M = levels_D4.reshape(-1, 2, 4)
        # Sixteen codewords a pair of dimensions: every level of the one with every level of the other.
        codewords_M = np.stack([np.repeat(pairs_M[:, 0], 4, axis=1), np.tile(pairs_M[:, 1], (1, 4))], axis=-1)
        self.product = faiss.ProductQuantizer(centroids_LD.shape[1], len(pairs_M), 4)
        faiss.copy_array_to_vector(np.ascontiguousarray(codewords_M, np.float32).ravel(), self.product.centroids)

    @classmethod
    def learn(cls, sample_SD: Vectors, lists: int) -> Quantizer:
        """Learn `lists` centroids (at most one per row) from unit vectors; equal samples give equal quantizers."""
        faiss = load_faiss()

        scaled_SD = scaled(sample_SD)
        clustering = faiss.Clustering(scaled_SD.shape[1], min(lists, len(scaled_SD)))
        clustering.niter, clustering.int_centroids, clustering.seed = _ROUNDS, True, 1
        clustering.min_points_per_centroid, clustering.max_points_per_centroid = 1, len(scaled_SD)
        centers = faiss.IndexFlatL2(scaled_SD.shape[1])
        clustering.train(scaled_SD, centers)
        centroids_LD = faiss.vector_to_array(clustering.centroids).reshape(-1, scaled_SD.shape[1])
        left_SD = scaled_SD - centroids_LD[centers.search(scaled_SD, 1)[1][:, 0]]
        # Sums of squares of whole numbers: exact in float64, whatever the order.
        squares_D = np.square(left_SD.astype(np.float64)).sum(axis=0)
        return cls(centroids_LD, np.sqrt(squares_D / len(left_SD)).astype(np.float32))

    @property
    def lists(self) -> int:
        """How many lists there are."""
        return len(self.centroids_LD)

    def digest(self) -> str:
        """SHA-256 of the quantizer: what the codes of a vector depend on besides the vector."""
        digest = hashlib.sha256(repr(self.centroids_LD.shape).encode())
        digest.update(self.centroids_LD.astype("<f4").tobytes() + self.deviations_D.astype("<f4").tobytes())
        return digest.hexdigest()

    def encode(self, vectors_ND: Vectors, rows_N: NDArray[np.int64]) -> Codes:
        """Lists and codes of some rows of unit vectors."""
        lists_N = np.empty(len(rows_N), np.int32)
        codes_NB = np.empty((len(rows_N), self.product.code_size), np.uint8)
        for at in range(0, len(rows_N), _BLOCK):
            block = slice(at, at + _BLOCK)
            scaled_BD = scaled(vectors_ND[rows_N[block]])
            lists_N[block] = self._nearest_list.search(scaled_BD, 1)[1][:, 0]
            codes_NB[block] = self.product.compute_codes(scaled_BD - self.centroids_LD[lists_N[block]])
        return Codes(lists_N, codes_NB)


class ApproximateIndex:
    """The rows of one scope in inverted lists."""

    kind = "approximate"

    def __init__(
        self,
        embeddings_ND: Vectors,
        rows_N: NDArray[np.int64],
        quantizer: Quantizer,
        codes: Codes,
        *,
        probed: int | None = None,
        read: int = READ,
    ) -> None:
        """`rows_N` are the rows of `embeddings_ND` that belong to the scope, `codes` theirs, in the same order.

        A query reads `probed` lists (None: as :data:`PROBED` says) and ranks `read` candidates for each one asked for.
        """
        faiss = load_faiss()

        self._embeddings_ND, self._rows_N = embeddings_ND, rows_N
        self._read = read
        counts_L = np.bincount(codes.lists_N, minlength=quantizer.lists)
        # Lists without rows of this scope would use up what a query reads.
        self._centroids_LD = np.ascontiguousarray(quantizer.centroids_LD[counts_L > 0])
        self._norms_L = np.square(self._centroids_LD).sum(axis=1)
        self._lists = np.flatnonzero(counts_L > 0)
        self._probed = max(LEAST_PROBED, quantizer.lists // PROBED) if probed is None else probed
        self._coarse = faiss.IndexFlatIP(quantizer.centroids_LD.shape[1])
        self._coarse.add(quantizer.centroids_LD)
        inverted: Any = faiss.IndexIVFPQ(
            self._coarse, self._coarse.d, quantizer.lists, quantizer.product.M, 4, faiss.METRIC_INNER_PRODUCT
        )
        inverted.pq, inverted.is_trained, inverted.by_residual = quantizer.product, True, True
        by_list_N = np.argsort(codes.lists_N, kind="stable")  # in a list the rows keep their order
        sorted_NB = codes.codes_NB[by_list_N]
        ends_L = np.cumsum(counts_L)
        for number in self._lists:
            begin, end = int(ends_L[number] - counts_L[number]), int(ends_L[number])
            ids, content = by_list_N[begin:end], sorted_NB[begin:end]
            inverted.invlists.add_entries(int(number), end - begin, faiss.swig_ptr(ids), faiss.swig_ptr(content))
        inverted.ntotal = len(rows_N)
        self._index: Any = faiss.IndexIVFPQFastScan(inverted)
        inverted.reset()  # the lists were copied into blocks
        self._index.implem = _PER_QUERY

    def nearest(self, queries_QD: Vectors, count: int) -> list[Nearest]:
        """Rows and cosines of about the `count` nearest of each query: exact cosines, ranked as exact search ranks.

        Rows count from 0 inside the scope. Fewer than `count` come back only where the scope holds fewer.
        """
        count = min(count, len(self._rows_N))
        if count == 0:
            return [(np.empty(0, np.int64), np.empty(0, np.float64)) for _ in queries_QD]
        found_QK = self._candidates(queries_QD, count, self._probed)
        short_Q = (found_QK >= 0).sum(axis=1) < count
        if short_Q.any():  # lists that hold too little: all are read
            found_QK[short_Q] = self._candidates(queries_QD[short_Q], count, len(self._lists))
        return [
            self._ranked(found_K[found_K >= 0], query_D, count)
            for found_K, query_D in zip(found_QK, queries_QD, strict=True)
        ]

    def _ranked(self, found_K: NDArray[np.int64], query_D: Vectors, count: int) -> Nearest:
        found_K = np.sort(found_K)
        # Rows of the scope ascend with those of the embeddings, so equal cosines keep the order of either.
        rows_K, cosines_K = ranked(self._embeddings_ND, self._rows_N[found_K], query_D, count)
        return np.searchsorted(self._rows_N, rows_K), cosines_K

    def _candidates(self, queries_QD: Vectors, count: int, probed: int) -> NDArray[np.int64]:
        """Rows [Q, K] of the scope by their codes; −1 where the lists hold fewer."""
        faiss = load_faiss()

        scaled_QD, held = scaled(queries_QD), len(self._lists)
        distances_QL = faiss.pairwise_distances(scaled_QD, self._centroids_LD)
        # By distance, as rows were put into lists; equal ones by their number. Whole numbers hold both.
        keys_QL = distances_QL.astype(np.int64) * held + np.arange(held)
        nearest_QP = np.sort(np.partition(keys_QL, min(probed, held) - 1, axis=1)[:, :probed], axis=1) % held
        products_QP = (
            np.square(scaled_QD).sum(axis=1, keepdims=True)
            + self._norms_L[nearest_QP]
            - np.take_along_axis(distances_QL, nearest_QP, axis=1)
        ) / 2
        self._index.nprobe = nearest_QP.shape[1]
        read = min(len(self._rows_N), max(_LEAST_READ, self._read * count))
        _, found_QK = self._index.search_preassigned(scaled_QD, read, self._lists[nearest_QP], products_QP)
        return np.asarray(found_QK)


def scaled(vectors_ND: Vectors) -> Vectors:
    """Vectors in whole numbers, with a column of zeros where their dimension is odd: codes take dimensions in pairs."""
    whole_ND = np.rint(vectors_ND * np.float32(_SCALE)).astype(np.float32)
    if whole_ND.shape[1] % 2:
        whole_ND = np.pad(whole_ND, ((0, 0), (0, 1)))
    return np.ascontiguousarray(whole_ND)


def lists_for(rows: int) -> int:
    """How many lists a scope of so many rows gets."""
    return max(16, 1 << max(0, round(math.log2(max(rows, 1) / ROWS_A_LIST))))
