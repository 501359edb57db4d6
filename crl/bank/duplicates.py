"""Near-duplicates: all pairs of embeddings whose cosine reaches a threshold, without comparing all with all in full.

Nothing is missed, and nothing found depends on how it was looked for; two bounds save the work.

- *Cells.* The home of a vector is the cell whose center it has the largest product with. Let x be at home in cell a, y
  in cell b, |x − y| ≤ r. Then x·(a − b) ≥ 0 and y·(b − a) ≥ 0, and their sum (x − y)·(a − b) is at most r·|a − b|, so
  one of the two is at most half of that. So it is enough that each vector *visits* the cells b with
  x·(a − b) ≤ r·|a − b| / 2 and is compared with those at home there. Any centers will do; good ones leave few visits.
- *Head and tail.* An orthogonal basis splits a vector into a short head and a tail, and x·y ≤ head·head + |tail||tail|
  (Cauchy-Schwarz). That is itself a product of short vectors (the length of the tail is one more coordinate); only
  pairs that it lets through are compared in full. Principal components make it tight.

Both are computed in float32 with a margin above its rounding. What decides is the float64 cosine of
:func:`crl.bank.index.similarities`, whose value does not depend on threads, blocks or the rows beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crl.bank.index import similarities
from crl.bank.index.library import load_faiss
from crl.records import Resemblance

HEAD = 64
"""Coordinates of a head: MiniLM's first 64 principal components hold more than half of its variance."""
_CELL = 200
"""Vectors a cell holds on average; fewer mean fewer comparisons and more visits to work out."""
_MOST_CELLS = 1024
_TOO_MANY_VISITS = 0.25
"""Share of cells visited from which cells are given up: without them half of all is compared, and nothing gathered."""
_SAMPLE = 20_000
"""Vectors that centers and components are worked out from."""
_ROWS, _COLUMNS = 1024, 8192
"""Largest block of products at once (32 MiB)."""
_DENSE = 0.02
"""Share of a block from which comparing all of it in full is cheaper than gathering the pairs."""
_PAIRS = 1 << 16
"""Pairs whose cosines are computed at once."""


@dataclasses.dataclass(frozen=True, slots=True)
class NearDuplicates:
    """Pairs of rows, sorted by the first and then the second."""

    first_P: NDArray[np.int64]
    second_P: NDArray[np.int64]
    """Always the larger row."""
    cosine_P: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first_P)


def near_duplicates(embeddings_ND: NDArray[np.float32], threshold: float = 0.9) -> NearDuplicates:
    """Every pair of rows (unit vectors) whose cosine is at least `threshold`.

    Needs memory for all of them: where many rows are nearly equal they are many, see :func:`groups`.
    """
    embeddings_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)
    total = len(embeddings_ND)
    keys, cosines = [np.empty(0, np.int64)], [np.empty(0, np.float64)]
    for rows_P, others_P in _candidates(embeddings_ND, threshold):
        first_P, second_P = np.minimum(rows_P, others_P), np.maximum(rows_P, others_P)
        for at in range(0, len(first_P), _PAIRS):
            i, j = first_P[at : at + _PAIRS], second_P[at : at + _PAIRS]
            cosine = _cosines(embeddings_ND, i, j)
            near = cosine >= threshold
            keys.append(i[near] * total + j[near])
            cosines.append(cosine[near])
    # Both vectors of a pair may visit each other's cell: it is then found twice.
    key_P, at_P = np.unique(np.concatenate(keys), return_index=True)
    return NearDuplicates(key_P // max(total, 1), key_P % max(total, 1), np.concatenate(cosines)[at_P])


def groups(embeddings_ND: NDArray[np.float32], threshold: float = 0.9) -> NDArray[np.int64]:
    """Connected components [N] of near-duplicates: the smallest row of its component for every row.

    A row without a near-duplicate is its own. Pairs inside a component that is known already are left out, so a bank of
    nearly equal entries costs no more memory than another.
    """
    embeddings_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)
    root_N = np.arange(len(embeddings_ND), dtype=np.int64)
    for rows_P, others_P in _candidates(embeddings_ND, threshold):
        for at in range(0, len(rows_P), _PAIRS):
            i, j = rows_P[at : at + _PAIRS], others_P[at : at + _PAIRS]
            apart = root_N[i] != root_N[j]
            i, j = i[apart], j[apart]
            near = _cosines(embeddings_ND, i, j) >= threshold
            _join(root_N, root_N[i[near]], root_N[j[near]])
    return root_N


def _join(root_N: NDArray[np.int64], first_P: NDArray[np.int64], second_P: NDArray[np.int64]) -> None:
    """Join components, given by their roots, and let every row point at its root again."""
    if not len(first_P):
        return
    for first, second in np.unique(np.stack([first_P, second_P], axis=1), axis=0).tolist():
        while root_N[first] != first:
            first = root_N[first]
        while root_N[second] != second:
            second = root_N[second]
        root_N[max(first, second)] = min(first, second)
    while True:
        pointed_N = root_N[root_N]
        if np.array_equal(pointed_N, root_N):
            return
        root_N[:] = pointed_N


def _cosines(
    embeddings_ND: NDArray[np.float32], first_P: NDArray[np.int64], second_P: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Cosines [P], summed as `similarities` does."""
    products_PD = embeddings_ND[first_P].astype(np.float64) * embeddings_ND[second_P]
    return np.asarray(products_PD.sum(axis=1), dtype=np.float64)


def _candidates(
    embeddings_ND: NDArray[np.float32], threshold: float
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of rows, block by block, among which all near-duplicates are; some come twice, either way round."""
    total, dimension = embeddings_ND.shape
    if total < 2:
        return
    largest = max(1.0, float(np.einsum("nd,nd->n", embeddings_ND, embeddings_ND, dtype=np.float64).max()))
    margin = (dimension + 8) * 2.0**-23 * largest
    """More than the rounding of a float32 product of two of the vectors, in whatever order it is summed."""
    home_N, visits = _cells(embeddings_ND, radius=float(np.sqrt(max(0.0, 2 * largest - 2 * threshold))), margin=margin)
    # Vectors are in the order of their cells from here on, so that those of a cell are a slice.
    row_N = np.argsort(home_N, kind="stable")
    place_N = np.empty(total, dtype=np.int64)
    place_N[row_N] = np.arange(total)
    bound_NH = _heads(embeddings_ND)[row_N]
    ends = np.cumsum(np.bincount(home_N, minlength=len(visits)))
    for cell, visitors in enumerate(visits):
        first, end = int(ends[cell - 1]) if cell else 0, int(ends[cell])
        visiting = np.sort(place_N[visitors])
        for at in range(first, end, _ROWS):
            rows = np.arange(at, min(at + _ROWS, end))
            for columns in _blocks(at, end, visiting):
                bounds = bound_NH[at : rows[-1] + 1] @ _taken(bound_NH, columns).T
                found = np.flatnonzero(bounds >= threshold - margin)
                if len(found) > _DENSE * bounds.size:
                    products = embeddings_ND[row_N[rows]] @ embeddings_ND[row_N[columns]].T
                    found = np.flatnonzero(products >= threshold - margin)
                in_rows, in_columns = np.divmod(found, len(columns))
                first_P, second_P = rows[in_rows], columns[in_columns]
                # Of a cell's own pairs each once, and none of a vector with itself; visitors are from elsewhere.
                once = (second_P > first_P) | (second_P < first)
                if once.any():
                    yield row_N[first_P[once]], row_N[second_P[once]]


def _blocks(start: int, end: int, visiting: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Places from `start` to `end`, then those of the visitors, in blocks."""
    for at in range(start, end, _COLUMNS):
        yield np.arange(at, min(at + _COLUMNS, end))
    for at in range(0, len(visiting), _COLUMNS):
        yield visiting[at : at + _COLUMNS]


def _taken(values_NH: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rows in rising places, without a copy where they are a slice."""
    first, last = int(places[0]), int(places[-1])
    return values_NH[first : last + 1] if last - first + 1 == len(places) else values_NH[places]


def _heads(embeddings_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Head and length of the tail [N, HEAD + 1] of every vector: their products are no smaller than the vectors'."""
    total = len(embeddings_ND)
    sample = embeddings_ND[:: -(-total // _SAMPLE)].astype(np.float64)
    _, components_DD = np.linalg.eigh(sample.T @ sample)  # by rising eigenvalue
    basis_DH = components_DD[:, : -HEAD - 1 : -1]
    heads_NH = np.empty((total, basis_DH.shape[1] + 1), dtype=np.float32)
    for at in range(0, total, _COLUMNS):
        vectors = embeddings_ND[at : at + _COLUMNS].astype(np.float64)
        head = vectors @ basis_DH
        tail = (vectors**2).sum(axis=1) - (head**2).sum(axis=1)
        heads_NH[at : at + _COLUMNS, :-1] = head
        heads_NH[at : at + _COLUMNS, -1] = np.sqrt(np.maximum(tail, 0.0))
    return heads_NH


def _cells(
    embeddings_ND: NDArray[np.float32], *, radius: float, margin: float
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Cell [N] of every row, and the rows that visit each cell; one cell where visits would save nothing."""
    total = len(embeddings_ND)
    centers_CD = _centers(embeddings_ND)
    if len(centers_CD) > 1:
        sample = embeddings_ND[:: -(-total // 2000)]
        _, visiting_SC = _visiting(sample, centers_CD, radius, margin)
        if visiting_SC.mean() > _TOO_MANY_VISITS:
            centers_CD = centers_CD[:1]
    home_N = np.empty(total, dtype=np.int64)
    rows, cells = [], []
    for at in range(0, total, _COLUMNS):
        home, visiting = _visiting(embeddings_ND[at : at + _COLUMNS], centers_CD, radius, margin)
        home_N[at : at + _COLUMNS] = home
        in_rows, in_cells = np.nonzero(visiting)
        rows.append((in_rows + at).astype(np.int32))
        cells.append(in_cells.astype(np.int32))
    row_V, cell_V = np.concatenate(rows), np.concatenate(cells)
    by_cell_V = np.argsort(cell_V, kind="stable")
    starts = np.cumsum(np.bincount(cell_V, minlength=len(centers_CD)))[:-1]
    return home_N, [part.astype(np.int64) for part in np.split(row_V[by_cell_V], starts)]


def _visiting(
    vectors_BD: NDArray[np.float32], centers_CD: NDArray[np.float32], radius: float, margin: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Home [B] of every vector, and whether [B, C] it visits a cell that is not its home."""
    products_BC = vectors_BD @ centers_CD.T
    home_B = products_BC.argmax(axis=1)
    square_C = np.einsum("cd,cd->c", centers_CD, centers_CD, dtype=np.float64)
    apart_CC = square_C[:, None] + square_C - 2 * (centers_CD.astype(np.float64) @ centers_CD.T.astype(np.float64))
    reach_CC = (radius / 2 * np.sqrt(np.maximum(apart_CC, 0.0)) + 4 * margin).astype(np.float32)
    behind_BC = products_BC[np.arange(len(vectors_BD)), home_B][:, None] - products_BC
    visiting_BC = behind_BC <= reach_CC[home_B]
    visiting_BC[np.arange(len(vectors_BD)), home_B] = False
    return home_B.astype(np.int64), visiting_BC


def _centers(embeddings_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unit centers [C, D] by k-means over a sample; one where the bank is small enough to be a single block."""
    faiss = load_faiss()

    total, dimension = embeddings_ND.shape
    count = min(_MOST_CELLS, total // _CELL)
    if count < 8:
        return np.ascontiguousarray(embeddings_ND[:1])
    sample = np.ascontiguousarray(embeddings_ND[:: -(-total // _SAMPLE)])
    count = min(count, len(sample) // 8)
    kmeans = faiss.Kmeans(dimension, count, niter=6, spherical=True, seed=1, min_points_per_centroid=1)
    kmeans.train(sample)
    return np.ascontiguousarray(kmeans.centroids, dtype=np.float32)


_BLOCK = 65_536
"""Vectors that a few others are compared with at a time."""


class SimilarPairs:
    """Pairs of texts that resemble each other, either way round."""

    def __init__(self, rows: Iterable[Resemblance] = ()) -> None:
        self._pairs: dict[str, dict[str, float]] = {}
        self.add(rows)

    def add(self, rows: Iterable[Resemblance]) -> None:
        """Learn further pairs."""
        for row in rows:
            self._pairs.setdefault(row.content_digest, {})[row.other_digest] = row.similarity
            self._pairs.setdefault(row.other_digest, {})[row.content_digest] = row.similarity

    def of(self, digest: str) -> Mapping[str, float]:
        """Texts that resemble one, by digest, with the cosine of the two."""
        return self._pairs.get(digest, {})


def resemblances(
    digests: Sequence[str],
    vectors_MD: NDArray[np.float32],
    others: Sequence[str],
    vectors_ND: NDArray[np.float32],
    threshold: float,
) -> list[Resemblance]:
    """Pairs of the M texts with those of the N others whose cosine is at least `threshold`, but for equal texts.

    `duplicates: near` rejects a text that resembles one of the bank (appendix C.2). Consolidation is a pure function of
    rows and runs where no embedder is, so the stages that write operations also write what their texts resemble.

    Digests name the unit vectors beside them. The float64 cosine of :func:`crl.bank.index.similarities` decides; a
    float32 product with a margin above its rounding drops what cannot reach it. Order: by the first, then the second.
    """
    margin = 2 * (vectors_MD.shape[1] + 8) * 2.0**-23
    found = []
    for at in range(0, len(others), _BLOCK):
        block_BD = vectors_ND[at : at + _BLOCK]
        first, second = np.nonzero(vectors_MD @ block_BD.T >= threshold - margin)
        for row in np.unique(first).tolist():
            places = second[first == row]
            cosines = similarities(block_BD[places], vectors_MD[row])
            found += [
                Resemblance(content_digest=digests[row], other_digest=others[at + place], similarity=cosine)
                for place, cosine in zip(places.tolist(), cosines.tolist(), strict=True)
                if cosine >= threshold and others[at + place] != digests[row]
            ]
    return sorted(found, key=lambda each: (each.content_digest, each.other_digest))
