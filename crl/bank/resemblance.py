"""Which texts resemble each other: pairs as rows, found once by an embedder and read wherever a bank is made again.

`duplicates: near` rejects a text that resembles one of the bank (appendix C.2). Consolidation is a pure function of
rows and runs where no embedder is, so the stages that write operations also write what their texts resemble.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crl.bank.index import similarities
from crl.records import Resemblance

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
