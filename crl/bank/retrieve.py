"""Retrieval with diversification: eq. 6, s(m) = s_rank(m) − λ·ln(1 + c(m)) − 1[recent(m)].

The N·K nearest entries are candidates; the K eligible ones with the largest s guide the episode. Counters start
from the rows of the round before and advance in the order of the calls, so planning in episode order makes a round
reproducible; they are never stored in entries. Evaluation moves none, and takes the nearest unless it is asked to
diversify as well.

What the paper leaves open, and how it is read here:

- *recent(m)*: chosen inside a window of `recent_rounds` rounds that ends with the present one, what was chosen earlier
  in this very round included; 0 turns the term off.
- *N* in `fraction` (1 − rank/N) is the configured number, also where the bank holds fewer entries.
- *Eligible* is a candidate whose cosine reaches `threshold`; the others are recorded and cannot be chosen.
- Without `diversify` the score is s_rank alone: the nearest wins; c and recent are recorded all the same.
- Equal cosines are ranked, and equal scores decided, by the age of the entries: the oldest first, or the newest with
  `ties: newest`.
- `per: group`: one retrieval per group. The caller retrieves for its first guided member and gives the others the same
  rows by `shared_with`; c advances once.

Nothing here writes files, but for what a large scope's index caches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.index import ApproximateIndex, Base, ExactIndex, Nearest, Scope, open_index
from crl.bank.snapshot import Snapshot
from crl.config import RetrievalConfig
from crl.records import Retrieval, RetrievalCount
from crl.run.cache import Shelf

Partition = tuple[str, ...] | None
"""The families whose entries are searched together; None: the whole bank."""
_SHOWN = ("entry_id", "content_digest", "generation_id")
"""Columns of an entry that a retrieval row repeats."""


@dataclasses.dataclass(frozen=True, slots=True)
class EarlierBank:
    """An earlier bank of the same record, which large scopes learn their quantizer from; read only if one does."""

    entries: Callable[[], pa.Table | None]
    """Its rows of `BankEntry`; None where it is the bank that is searched."""
    embeddings: Callable[[pa.Table], NDArray[np.float32]]
    """Unit vectors of some of these rows."""


@dataclasses.dataclass(slots=True)
class _Counter:
    count: int = 0
    last_round: int | None = None


class BankRetriever:
    """One bank snapshot, searched for the episodes of one round. It holds no object an entry: a bank may be large."""

    def __init__(
        self,
        bank: Snapshot,
        embeddings_ND: NDArray[np.float32],
        counts: Sequence[RetrievalCount],
        config: RetrievalConfig,
        *,
        round: int,
        bank_round: int,
        base: EarlierBank | None = None,
        cache: Shelf | None = None,
        partitions: Mapping[str, Partition] | None = None,
        masked: Mapping[str, Set[str]] | None = None,
    ) -> None:
        """`embeddings_ND` holds the unit vectors of the bank's entries, row by row.

        `counts` are the counters before this round; those of entries the snapshot no longer has are left out.
        `base` is the last base of the bank; None learns quantizers from the bank itself. `cache` is where what a
        large scope needs is kept; None keeps it in memory. `partitions` says what is searched for each family; the
        others follow `config.scope`. `masked` has, by family, digests of the texts that are passed over for it: what
        is left is ranked as if they were not in the bank.
        """
        if len(embeddings_ND) != len(bank):
            raise ValueError(f"{len(bank)} entries, but {len(embeddings_ND)} embeddings")
        if config.ties == "newest":  # ties go by row
            bank, embeddings_ND = bank.newest_first(), embeddings_ND[::-1]
        self._bank, self._embeddings_ND = bank, np.ascontiguousarray(embeddings_ND, dtype=np.float32)
        self._config, self._round, self._bank_round = config, round, bank_round
        self._base, self._cache, self._partitions = base, cache, partitions or {}
        digests = bank.table["content_digest"]
        self._masked = {
            family: np.flatnonzero(pc.is_in(digests, value_set=pa.array(sorted(texts), pa.string())).to_numpy())
            for family, texts in (masked or {}).items()
        }
        rows = bank.rows_of([row.entry_id for row in counts])
        self._counters = {
            row: _Counter(counter.count, counter.last_round)
            for row, counter in zip(rows, counts, strict=True)
            if row is not None
        }
        self._scopes: dict[Partition, tuple[NDArray[np.int64], ExactIndex | ApproximateIndex]] = {}

    def masked_rows(self) -> list[tuple[str, str, str]]:
        """(family, entry, its version) of everything that is passed over, by family and in the order of entries."""
        columns = self._bank.table.select(["entry_id", "content_digest"])
        return [
            (family, row["entry_id"], row["content_digest"])
            for family, rows in sorted(self._masked.items())
            for row in columns.take(pa.array(self._by_age(rows.tolist()), pa.int64())).to_pylist()
        ]

    @property
    def kinds(self) -> dict[str, str]:
        """Which index each scope searched so far has, by its families (`bank`: all)."""
        return {
            "bank" if partition is None else "+".join(partition): index.kind
            for partition, (_, index) in self._scopes.items()
        }

    def retrieve(
        self, episode_id: str, family: str, query_D: NDArray[np.float32], *, advance: bool = True
    ) -> list[Retrieval]:
        """All candidates of one episode: see :meth:`retrieve_many`."""
        return self.retrieve_many([(episode_id, family)], query_D[None, :], advance=advance)[0]

    def retrieve_many(
        self, episodes: Sequence[tuple[str, str]], queries_QD: NDArray[np.float32], *, advance: bool = True
    ) -> list[list[Retrieval]]:
        """All candidates of each episode (its id and family), the nearest first, with every term of eq. 6.

        At most K of an episode are `chosen`: none where none is eligible. No row comes back where the scope is empty.
        All are searched at once and then re-ranked in their order: counters advance from one to the next as if they
        came one by one. `advance` False (evaluation) leaves the counters as they are.
        """
        found = self._search([family for _, family in episodes], queries_QD)
        rows = np.unique(np.concatenate([rows_K for rows_K, _ in found])) if found else np.empty(0, np.int64)
        entries = self._bank.table.select(list(_SHOWN)).take(pa.array(rows)).to_pylist()
        shown = dict(zip(rows.tolist(), entries, strict=True))
        return [
            self._reranked(episode_id, family, nearest, shown, advance=advance)
            for (episode_id, family), nearest in zip(episodes, found, strict=True)
        ]

    def counts(self) -> list[RetrievalCount]:
        """Counters of the snapshot's entries chosen at least once so far, in entry order."""
        rows = self._by_age(row for row, counter in self._counters.items() if counter.last_round is not None)
        entry_ids = self._bank.table["entry_id"].take(pa.array(rows, pa.int64())).to_pylist()
        return [
            RetrievalCount(entry_id=entry_id, count=self._counters[row].count, last_round=last_round)
            for entry_id, row in zip(entry_ids, rows, strict=True)
            if (last_round := self._counters[row].last_round) is not None
        ]

    def _by_age(self, rows: Iterable[int]) -> list[int]:
        return sorted(rows, reverse=self._config.ties == "newest")

    def _search(self, families: Sequence[str], queries_QD: NDArray[np.float32]) -> list[Nearest]:
        """Rows of the bank and cosines of each query's candidates, one search per scope."""
        wanted = self._config.candidates * self._config.top_k
        scopes = [self._partition(family) for family in families]
        found: dict[int, Nearest] = {}
        for partition in dict.fromkeys(scopes):
            rows_N, index = self._scope(partition)
            places = [place for place, each in enumerate(scopes) if each == partition]
            masked = [self._masked.get(families[place], _NO_ROWS) for place in places]
            more = max(map(len, masked))  # so that as many are left as there would be without them
            nearest = index.nearest(queries_QD[places], wanted + more)
            for place, out, (rows_K, cosines_K) in zip(places, masked, nearest, strict=True):
                found[place] = _without(rows_N[rows_K], cosines_K, out, wanted) if more else (rows_N[rows_K], cosines_K)
        return [found[place] for place in range(len(scopes))]

    def _partition(self, family: str) -> Partition:
        if family in self._partitions:
            return self._partitions[family]
        return (family,) if self._config.scope == "family" else None

    def _scope(self, partition: Partition) -> tuple[NDArray[np.int64], ExactIndex | ApproximateIndex]:
        if partition not in self._scopes:
            rows_N = _rows_in(self._bank.table, partition)
            scope = Scope(self._embeddings_ND, rows_N, _digests(self._bank.table, rows_N))
            index = open_index(scope, self._config.index, base=lambda: self._base_of(partition), cache=self._cache)
            self._scopes[partition] = (rows_N, index)
        return self._scopes[partition]

    def _base_of(self, partition: Partition) -> Base | None:
        if self._base is None:
            return None
        entries, embeddings = self._base.entries(), self._base.embeddings
        if entries is None:
            return None
        rows_N = _rows_in(entries, partition)
        return Base(_digests(entries, rows_N), lambda places: embeddings(entries.take(pa.array(rows_N[places]))))

    def _reranked(
        self, episode_id: str, family: str, nearest: Nearest, shown: dict[int, dict[str, str]], *, advance: bool
    ) -> list[Retrieval]:
        candidates = [
            self._candidate(episode_id, family, row, shown[row], rank, cosine)
            for rank, (row, cosine) in enumerate(zip(nearest[0].tolist(), nearest[1].tolist(), strict=True))
        ]
        eligible = [place for place, row in enumerate(candidates) if row.similarity >= self._config.threshold]
        # A stable sort keeps equals in their order: the better rank first.
        for best in sorted(eligible, key=lambda place: -candidates[place].score)[: self._config.top_k]:
            if advance:
                counter = self._counters.setdefault(int(nearest[0][best]), _Counter())
                counter.count += 1
                counter.last_round = self._round
            candidates[best] = dataclasses.replace(candidates[best], chosen=True)
        return candidates

    def _candidate(
        self, episode_id: str, family: str, row: int, entry: dict[str, str], rank: int, cosine: float
    ) -> Retrieval:
        config, counter = self._config, self._counters.get(row, _UNUSED)
        recent = counter.last_round is not None and 0 <= self._round - counter.last_round < config.recent_rounds
        rank_score = rank_score_of(rank, config)
        return Retrieval(
            episode_id=episode_id,
            round=self._round,
            bank_round=self._bank_round,
            family=family,
            **entry,
            rank=rank,
            similarity=cosine,
            rank_score=rank_score,
            count=counter.count,
            recent=recent,
            score=score_of(rank_score, counter.count, recent, config),
            chosen=False,
            teaches=False,
        )


_UNUSED = _Counter()
_NO_ROWS = np.empty(0, np.int64)


def _without(rows_K: NDArray[np.int64], cosines_K: NDArray[np.float64], out: NDArray[np.int64], wanted: int) -> Nearest:
    """The first candidates that are not out."""
    kept_K = ~np.isin(rows_K, out)
    return rows_K[kept_K][:wanted], cosines_K[kept_K][:wanted]


def _rows_in(entries: pa.Table, partition: Partition) -> NDArray[np.int64]:
    """Rows of some families, ascending; all for None."""
    if partition is None:
        return np.arange(entries.num_rows)
    return np.flatnonzero(pc.is_in(entries["family"], value_set=pa.array(partition, pa.string())).to_numpy())


def _digests(entries: pa.Table, rows_N: NDArray[np.int64]) -> pa.Array:
    return entries["content_digest"].take(pa.array(rows_N)).combine_chunks()


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
