"""What new texts resemble, found while they are written: stages `distill` and `merge`, if near-duplicates are refused.

Two texts resemble each other where the embedder holds them nearly alike and nothing plain tells them apart: numbers,
denials, order (`crl/text/facts.py`). The embedder is at hand there; whoever applies the operations later reads the rows
(`crl/bank/duplicates.py`). Texts are compared in the scope that retrieval searches: an experience of another family is
no near-duplicate unless it could be found instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crl.bank.duplicates import SimilarPairs, resemblances
from crl.bank.retrieve import Partition
from crl.bank.segments import load_embeddings, load_texts, text_digest
from crl.bank.snapshot import Snapshot
from crl.recipes.complementary.config import config_of
from crl.records import Operation, Resemblance, rows_with
from crl.rounds.context import StageContext
from crl.rounds.proposal import partitions_of
from crl.text.facts import differ


class Resembling:
    """Compares new texts with a bank and with each other; remembers what it found."""

    def __init__(self, ctx: StageContext, bank: Snapshot) -> None:
        self.alike = SimilarPairs()
        self.rows: list[Resemblance] = []
        self._ctx, self._bank = ctx, bank
        self._partitions = partitions_of(ctx.method)
        self._embedder = ctx.services.embedder()
        self._of_bank = cache(self._read)
        self._new: dict[Partition, dict[str, NDArray[np.float32]]] = {}
        """Vectors of the new texts so far, by scope and digest."""
        self._known: dict[str, str] = {}
        """The new texts so far."""

    def know(self, operations: Sequence[Operation], rows: Iterable[Resemblance]) -> None:
        """Texts of an earlier stage of the round, and what that stage found about them."""
        self.alike.add(rows)
        for scope, texts in self._texts(operations).items():
            self._add(scope, texts)

    def find(self, operations: Sequence[Operation]) -> None:
        """Compare the texts of operations with the bank, with all texts before them and with each other."""
        for scope, texts in self._texts(operations).items():
            digests, vectors_MD = list(texts), self._add(scope, texts)
            table, vectors_ND = self._of_bank(scope)
            held, new = table["content_digest"].to_pylist(), self._new[scope]
            found = resemblances(digests, vectors_MD, held, vectors_ND, self._threshold) if held else []
            among = {row.other_digest for row in found}
            near = table.filter(pa.array([digest in among for digest in held], pa.bool_()))
            known = {**load_texts(self._ctx.run_path, near), **self._known}
            found += resemblances(digests, vectors_MD, list(new), np.stack(list(new.values())), self._threshold)
            self._remember(row for row in found if not differ(known[row.content_digest], known[row.other_digest]))

    @property
    def _threshold(self) -> float:
        return config_of(self._ctx.method).bank.similarity

    def _remember(self, found: Iterable[Resemblance]) -> None:
        """Keep each pair once, whichever way round and in however many families it was found."""
        fresh = []
        for row in found:
            if row.other_digest not in self.alike.of(row.content_digest):
                fresh.append(row)
                self.alike.add([row])
        self.rows += fresh

    def _texts(self, operations: Iterable[Operation]) -> dict[Partition, dict[str, str]]:
        """Texts that may come into the bank, by scope and digest."""
        found: dict[Partition, dict[str, str]] = {}
        for operation in operations:
            text = operation.text
            if operation.kind in ("add", "update", "merge") and text and text.strip() and _writable(text):
                scope = self._partitions.get(operation.family, (operation.family,))
                found.setdefault(scope, {})[text_digest(text)] = text
        return found

    def _add(self, scope: Partition, texts: dict[str, str]) -> NDArray[np.float32]:
        """Vectors [M, D] of texts, which are remembered."""
        self._known |= texts
        vectors_MD = self._embedder.embed(list(texts.values()))
        self._new.setdefault(scope, {}).update(zip(texts, vectors_MD, strict=True))
        return vectors_MD

    def _read(self, scope: Partition) -> tuple[pa.Table, NDArray[np.float32]]:
        """Entries and vectors of a scope's texts in the bank, each text once."""
        table = self._bank.table if scope is None else rows_with(self._bank.table, "family", scope)
        digests = table["content_digest"].to_pylist()
        once = table.take(pa.array(sorted({digest: row for row, digest in enumerate(digests)}.values()), pa.int64()))
        if not once.num_rows:
            return once, np.empty((0, 0), np.float32)
        return once, load_embeddings(self._ctx.run_path, once)


def _writable(text: str) -> bool:
    """Whether the text can be written as UTF-8: a lone surrogate cannot, and is refused for it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
