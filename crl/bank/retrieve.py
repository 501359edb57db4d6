"""Retrieval with diversification: eq. 6, s(m) = s_rank(m) − λ·ln(1 + c(m)) − 1[recent(m)].

The N·K nearest entries (K = 1) are candidates; the eligible one with the largest s guides the episode. Counters start
from the rows of the round before and advance in the order of the calls, so planning in episode order makes a round
reproducible; they are never stored in entries. Evaluation reads the same counters and moves none.

What the paper leaves open, and how it is read here:

- *recent(m)*: chosen inside a window of `recent_rounds` rounds that ends with the present one, what was chosen earlier
  in this very round included; 0 turns the term off.
- *N* in `fraction` (1 − rank/N) is the configured number, also where the bank holds fewer entries.
- *Eligible* is a candidate whose cosine reaches `threshold`; the others are recorded and cannot be chosen.
- Without `diversify` the score is s_rank alone: the nearest wins; c and recent are recorded all the same.
- Equal cosines are ranked, and equal scores decided, by the order of the entries.
- `per: group`: one retrieval a group. The caller retrieves for its first guided member and gives the others the same
  rows by `shared_with`; c advances once.

Nothing here writes files, but for the disposable index cache.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crl.bank.index import ExactIndex, cached_index, embeddings_digest
from crl.config import RetrievalConfig
from crl.records import BankEntry, Retrieval, RetrievalCount


@dataclasses.dataclass
class _Counter:
    count: int = 0
    last_round: int | None = None


class BankRetriever:
    """One bank snapshot, searched for the episodes of one round."""

    def __init__(
        self,
        entries: Sequence[BankEntry],
        embeddings_ND: NDArray[np.float32],
        counts: Sequence[RetrievalCount],
        config: RetrievalConfig,
        *,
        round: int,
        bank_round: int,
        cache_dir: Path | None = None,
    ) -> None:
        """`embeddings_ND` holds the unit vectors of `entries`, row by row.

        `counts` are the counters before this round; those of entries the snapshot no longer has are left out.
        `cache_dir` is where indexes may be cached; None keeps them in memory.
        """
        if len(embeddings_ND) != len(entries):
            raise ValueError(f"{len(entries)} entries, but {len(embeddings_ND)} embeddings")
        by_order = sorted(range(len(entries)), key=lambda row: (entries[row].order, entries[row].entry_id))
        self._entries = [entries[row] for row in by_order]
        self._embeddings_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float32)[by_order]
        self._config, self._round, self._bank_round, self._cache_dir = config, round, bank_round, cache_dir
        self._counters = {entry.entry_id: _Counter() for entry in self._entries}
        for row in counts:
            if row.entry_id in self._counters:
                self._counters[row.entry_id] = _Counter(row.count, row.last_round)
        self._scopes: dict[str | None, tuple[list[int], ExactIndex]] = {}

    def retrieve(
        self, episode_id: str, family: str, query_D: NDArray[np.float32], *, advance: bool = True
    ) -> list[Retrieval]:
        """All candidates of one episode, the nearest first, with every term of eq. 6; at most one is `chosen`.

        `advance` False (evaluation) leaves the counters as they are. No row is chosen where none is eligible; no row
        comes back where the scope is empty.
        """
        rows, index = self._scope(family if self._config.scope == "family" else None)
        if not rows:
            return []
        found_N, cosines_N = index.nearest(query_D, self._config.candidates * self._config.top_k)
        candidates = [
            self._candidate(episode_id, family, self._entries[rows[found]], rank, float(cosine))
            for rank, (found, cosine) in enumerate(zip(found_N, cosines_N, strict=True))
        ]
        eligible = [row for row in candidates if row.similarity >= self._config.threshold]
        if not eligible:
            return candidates
        # max keeps the first of equals: the better rank.
        best = max(eligible, key=lambda row: row.score)
        if advance:
            counter = self._counters[best.entry_id]
            counter.count += 1
            counter.last_round = self._round
        return [dataclasses.replace(row, chosen=True) if row is best else row for row in candidates]

    def counts(self) -> list[RetrievalCount]:
        """Counters of the snapshot's entries chosen at least once so far, in entry order."""
        return [
            RetrievalCount(entry_id=entry_id, count=counter.count, last_round=counter.last_round)
            for entry_id, counter in self._counters.items()
            if counter.last_round is not None
        ]

    def _scope(self, family: str | None) -> tuple[list[int], ExactIndex]:
        if family not in self._scopes:
            rows = [row for row, entry in enumerate(self._entries) if family is None or entry.family == family]
            embeddings_ND = self._embeddings_ND[rows]
            if self._cache_dir is None or not rows:
                index = ExactIndex(embeddings_ND)
            else:
                index = cached_index(self._cache_dir, embeddings_digest(embeddings_ND), embeddings_ND)
            self._scopes[family] = (rows, index)
        return self._scopes[family]

    def _candidate(self, episode_id: str, family: str, entry: BankEntry, rank: int, cosine: float) -> Retrieval:
        config, counter = self._config, self._counters[entry.entry_id]
        recent = counter.last_round is not None and 0 <= self._round - counter.last_round < config.recent_rounds
        rank_score = rank_score_of(rank, config)
        return Retrieval(
            episode_id=episode_id,
            round=self._round,
            bank_round=self._bank_round,
            family=family,
            entry_id=entry.entry_id,
            content_digest=entry.content_digest,
            generation_id=entry.generation_id,
            rank=rank,
            similarity=cosine,
            rank_score=rank_score,
            count=counter.count,
            recent=recent,
            score=score_of(rank_score, counter.count, recent, config),
            chosen=False,
        )


def rank_score_of(rank: int, config: RetrievalConfig) -> float:
    """s_rank of eq. 6: −rank, or 1 − rank/N."""
    if config.rank_score == "negative_rank":
        return -float(rank)
    return 1.0 - rank / (config.candidates * config.top_k)


def score_of(rank_score: float, count: int, recent: bool, config: RetrievalConfig) -> float:
    """s of eq. 6; s_rank alone where diversification is off."""
    if not config.diversify:
        return rank_score
    return rank_score - config.count_weight * math.log1p(count) - float(recent)


def shared_with(rows: Sequence[Retrieval], episode_id: str) -> list[Retrieval]:
    """The same retrieval for another guided member of the group (`per: group`)."""
    return [dataclasses.replace(row, episode_id=episode_id) for row in rows]
