"""Search over paragraphs, by words (BM25) or by meaning (embeddings in the index that experience banks have)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from crl.worlds.hotpotqa.questions import Paragraph
from crl.worlds.search import SearchIndex

Way = Literal["bm25", "embeddings"]


class Search(Protocol):
    """Paragraphs that can be searched."""

    paragraphs: Sequence[Paragraph]

    def find(self, query: str, count: int) -> list[Paragraph]:
        """The best paragraphs for a query, best first, at most `count`."""


class WordSearch:
    """BM25 over titles and texts (`worlds/search.py`). A paragraph that shares no word with a query is not found."""

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        self.paragraphs = paragraphs
        ids = [f"{number:09d}" for number in range(len(paragraphs))]  # equal scores in the order of the file
        self._index = SearchIndex(ids, (paragraph.document for paragraph in paragraphs))

    def find(self, query: str, count: int) -> list[Paragraph]:
        """The best paragraphs for a query, best first, at most `count`."""
        return [self.paragraphs[number] for number in self._index.search(query, count)]


class MeaningSearch:
    """The nearest embeddings by cosine. Whatever is asked, the nearest paragraphs are found."""

    def __init__(self, paragraphs: Sequence[Paragraph], embedder: str) -> None:
        """`embedder` is the name of one, as in `retrieval.embedder`. Raises BadInput where it cannot be had."""
        import pyarrow as pa

        from crl.bank.index import Scope, open_index
        from crl.policies.embedders import load_embedder

        self.paragraphs = paragraphs
        self._embedder = load_embedder(embedder)
        texts = [paragraph.document for paragraph in paragraphs]
        digests = pa.array([hashlib.sha256(text.encode()).hexdigest() for text in texts], pa.string())
        scope = Scope(self._embedder.embed(texts), np.arange(len(texts), dtype=np.int64), digests)
        self._index = open_index(scope, "auto")

    def find(self, query: str, count: int) -> list[Paragraph]:
        """The best paragraphs for a query, best first, at most `count`."""
        rows_K, _ = self._index.nearest(self._embedder.embed_queries([query]), count)[0]
        return [self.paragraphs[row] for row in rows_K.tolist()]


def search_over(paragraphs: Sequence[Paragraph], way: Way, embedder: str) -> Search:
    """A search over some paragraphs. Raises BadInput where its embedder cannot be had."""
    return WordSearch(paragraphs) if way == "bm25" else MeaningSearch(paragraphs, embedder)
