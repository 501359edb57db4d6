"""Indexes over the experience embeddings of one scope: which rows are nearest to a query.

`exact.py` compares a query with every row, `approximate.py` with the rows of the nearest lists; `choice.py` says which
one a scope gets and what of it is cached, `library.py` which FAISS searches, on a CPU or a GPU. Whatever finds the
candidates, they are ranked by the same float64 cosines, equal ones in row order.
"""

from crl.bank.index.approximate import ApproximateIndex, Quantizer
from crl.bank.index.choice import Base, Scope, chosen_kind, open_index
from crl.bank.index.exact import ExactIndex, Nearest, similarities
from crl.bank.index.library import check_faiss, searcher

__all__ = [
    "ApproximateIndex", "Base", "ExactIndex", "Nearest", "Quantizer", "Scope", "check_faiss", "chosen_kind",
    "open_index", "searcher", "similarities",
]  # fmt: skip
