"""Searching the bank after a round: by meaning, with the embedder that the run retrieves with, or by words.

Counters and diversification (eq. 6) are left out: this shows what is near, not what would be chosen.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.errors import BadInput
from crl.protocols import Embedder
from crl.report.bank import BankAfter, ShownEntry

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Hit:
    """One entry found."""

    score: float
    """Cosine of text and entry; of a word search, the share of the words' weight that the entry holds."""
    entry: ShownEntry


def search(bank: BankAfter, text: str, embedder: Embedder, *, family: str | None = None, most: int = 10) -> list[Hit]:
    """The nearest entries by cosine, the nearest first; ties keep the oldest first. Raises BadInput, RecordDamaged."""
    _require_text(text)
    rows = bank.rows(family)
    if not len(rows):
        return []
    vectors_ND = bank.embeddings(rows)
    query_D = embedder.embed_queries([text])[0]
    nearest = _best(vectors_ND @ query_D, most)
    # float64, so that the figure does not depend on how many rows the product was made over.
    query = query_D.astype(np.float64)
    cosines = [float(vectors_ND[row].astype(np.float64) @ query) for row in nearest]
    return [Hit(*pair) for pair in zip(cosines, bank.entries(rows[nearest]), strict=True)]


def search_words(bank: BankAfter, text: str, *, family: str | None = None, most: int = 10) -> list[Hit]:
    """Entries that hold words of the text, whole and in either case; rare words weigh more. No model is needed."""
    _require_text(text)
    words = sorted({word.lower() for word in _WORD.findall(text)})
    if not words:
        raise BadInput(f"{text!r} holds no word", expected="letters or digits", next_step="search without --lexical")
    rows = bank.rows(family)
    if not len(rows):
        return []
    texts = pa.array(bank.texts(rows), pa.string())
    weight_N, total = np.zeros(len(rows)), 0.0
    for word in words:
        # RE2's own word boundary knows ASCII letters only.
        pattern = rf"(^|[^\pL\pN_]){re.escape(word)}($|[^\pL\pN_])"
        holds_N = pc.match_substring_regex(texts, pattern, ignore_case=True).to_numpy(zero_copy_only=False)
        weight = math.log1p(len(rows) / max(1, int(holds_N.sum())))
        weight_N += weight * holds_N
        total += weight
    best = [row for row in _best(weight_N, most) if weight_N[row] > 0]
    found = bank.entries(rows[best]) if best else []
    return [Hit(float(weight_N[row] / total), entry) for row, entry in zip(best, found, strict=True)]


def _best(score_N: NDArray[np.floating[Any]], most: int) -> list[int]:
    """Rows of the highest scores, the highest first, ties in order of rows."""
    found: list[int] = np.argsort(-score_N, kind="stable")[:most].tolist()
    return found


def _require_text(text: str) -> None:
    if not text.strip():
        raise BadInput("there is nothing to search for", expected="a text, such as a game's goal")
