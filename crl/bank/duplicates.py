"""Texts that resemble each other: pairs whose cosine reaches a threshold, and the groups that such pairs join.

All are compared with all, in blocks: a float32 product with a margin above its rounding drops what cannot reach the
threshold. What decides is the float64 cosine of :func:`crl.bank.index.similarities`, whose value does not depend on
threads, blocks or the rows beside it. The time grows with the square of the entries that are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crl.records import Resemblance

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
_ROWS, _COLUMNS = 1024, 8192
"""Largest block of products at once (32 MiB)."""
_PAIRS = 1 << 16
"""Pairs whose cosines are computed at once."""


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
    Digests name the unit vectors beside them. Order: by the first, then the second.
    """
    found = []
    for first_P, second_P in _candidates(vectors_MD, vectors_ND, threshold):
        cosine_P = _cosines(vectors_MD[first_P], vectors_ND[second_P])
        found += [
            Resemblance(content_digest=digests[row], other_digest=others[other], similarity=cosine)
            for row, other, cosine in zip(first_P.tolist(), second_P.tolist(), cosine_P.tolist(), strict=True)
            if cosine >= threshold and others[other] != digests[row]
        ]
    return sorted(found, key=lambda each: (each.content_digest, each.other_digest))


def groups(embeddings_ND: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    """Connected components [N] of near-duplicates: the smallest row of its component for every row.

    A row without a near-duplicate is its own. Pairs inside a component that is known already are left out, so a bank of
    nearly equal entries costs no more memory than another.
    """
    embeddings_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)
    root_N = np.arange(len(embeddings_ND), dtype=np.int64)
    for at in range(0, len(embeddings_ND), _ROWS):
        for i, j in _candidates(embeddings_ND[at : at + _ROWS], embeddings_ND[at:], threshold):
            apart = root_N[i + at] != root_N[j + at]
            i, j = i[apart] + at, j[apart] + at
            near = _cosines(embeddings_ND[i], embeddings_ND[j]) >= threshold
            _join(root_N, root_N[i[near]], root_N[j[near]])
    return root_N


def _candidates(vectors_MD: NDArray[np.float32], vectors_ND: NDArray[np.float32], threshold: float) -> Iterator[Pairs]:
    """Rows of the one and of the other among which all pairs that reach a threshold are, some at a time."""
    margin = 2 * (vectors_MD.shape[1] + 8) * 2.0**-23
    for at in range(0, len(vectors_MD), _ROWS):
        for start in range(0, len(vectors_ND), _COLUMNS):
            products = vectors_MD[at : at + _ROWS] @ vectors_ND[start : start + _COLUMNS].T
            first_P, second_P = np.nonzero(products >= threshold - margin)
            for part in range(0, len(first_P), _PAIRS):
                yield first_P[part : part + _PAIRS] + at, second_P[part : part + _PAIRS] + start


def _cosines(first_PD: NDArray[np.float32], second_PD: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosines [P], summed as `similarities` does."""
    return np.asarray((first_PD.astype(np.float64) * second_PD).sum(axis=1), dtype=np.float64)


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
