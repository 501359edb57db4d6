"""Texts to unit vectors: all-MiniLM-L6-v2, or a hashed bag of words that needs no model (protocol `Embedder`).

Similarities go into digests, so a text must have the same bits whatever else is embedded with it, in each process.
Batched matrix products round differently with batch and padding, so MiniLM reads one text at a time (some milliseconds
each); both remember texts they have seen.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crl.policies.sources import check_embedder, resolve_embedder
from crl.protocols import Embedder

_REMEMBERED = 32_768
"""Texts a process remembers: 50 MB of 384-dimensional vectors."""
_WORD = re.compile(r"\w+|[^\w\s]")


class LexicalEmbedder:
    """Hashed bag of words: sublinear counts 1 + ln(tf), signed SHA-256 feature hashing, unit norm."""

    name = "lexical"
    dimension = 256

    def __init__(self) -> None:
        self._vector = lru_cache(maxsize=_REMEMBERED)(self._compute)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts; a text has the same vector whatever the batch."""
        return _stack([self._vector(text) for text in texts], self.dimension)

    def _compute(self, text: str) -> NDArray[np.float32]:
        counts = Counter(_WORD.findall(text.lower())) or Counter([""])  # an empty text has a direction too
        vector = np.zeros(self.dimension, dtype=np.float64)
        for word in sorted(counts):
            digest = hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
            sign = 1.0 if digest[4] & 1 else -1.0
            vector[int.from_bytes(digest[:4], "little") % self.dimension] += sign * (1 + math.log(counts[word]))
        norm = math.sqrt(math.fsum(value * value for value in vector.tolist()))
        if norm == 0:  # words that cancelled out
            return self._compute("")
        return (vector / norm).astype(np.float32)


class MiniLMEmbedder:
    """all-MiniLM-L6-v2 through sentence-transformers, float32, on the CPU: the same bits on each run."""

    name = "minilm"
    dimension = 384

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: directory of the model (`resolve_embedder`).
        """
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(path), device="cpu", local_files_only=True)
        self._vector = lru_cache(maxsize=_REMEMBERED)(self._compute)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [B, D] of the texts; a text has the same vector whatever the batch."""
        return _stack([self._vector(text) for text in texts], self.dimension)

    def _compute(self, text: str) -> NDArray[np.float32]:
        # A lone surrogate, which a model can write, is no valid input of the tokenizer.
        clean = text.encode("utf-8", "replace").decode("utf-8")
        vector = self._model.encode(
            [clean], batch_size=1, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vector[0], dtype=np.float32)


@cache
def load_embedder(name: str) -> Embedder:
    """The embedder of that name, one a process. Raises `BadInput` for an unknown name or a missing package."""
    check_embedder(name)
    source = resolve_embedder(name)
    return LexicalEmbedder() if source is None else MiniLMEmbedder(source.path)


def _stack(vectors: list[NDArray[np.float32]], dimension: int) -> NDArray[np.float32]:
    return np.stack(vectors) if vectors else np.zeros((0, dimension), dtype=np.float32)
