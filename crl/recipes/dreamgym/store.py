"""The store of transitions: pools with a capacity, the oldest leave, searched by state and action."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.index.exact import ExactIndex
from crl.config import Method
from crl.protocols import Embedder
from crl.recipes.dreamgym.config import StoreConfig, config_of
from crl.recipes.dreamgym.prompts import Situation, situation_of
from crl.recipes.dreamgym.rows import FIT, GIVEN, HELD_OUT, REAL, PoolItem, Transition, TransitionVector
from crl.records import SYNTHETIC, rows_of, rows_with
from crl.rounds.context import StageContext

GATHER = "gather"
POOL = "pool"
"""Name of the read of the pools that a stage works with."""
CUT = "transitions_cut_by_embedder"
OfFamily = TypeVar("OfFamily", PoolItem, Transition)


def pool_of(row: Transition) -> str:
    """Which pool a transition belongs to."""
    return SYNTHETIC if row.source == SYNTHETIC else HELD_OUT if row.split == HELD_OUT else REAL


def gathered(before: Sequence[PoolItem], arrived: Iterable[PoolItem], config: StoreConfig) -> list[PoolItem]:
    """The pools after some transitions came in: of each the :func:`newest` up to its capacity, in their order."""
    capacity = {REAL: config.real, SYNTHETIC: config.synthetic, HELD_OUT: config.held_out}
    held: dict[str, list[PoolItem]] = defaultdict(list)
    for item in (*before, *arrived):
        held[item.pool].append(item)
    return [item for pool, most in capacity.items() for item in newest(held[pool], most)]


def newest(rows: Sequence[OfFamily], most: int) -> list[OfFamily]:
    """The newest `most` rows, in their order: of each task family its newest, dealt to the families in turn.

    A stage plays one family after the other, so the end of a list is the last family rather than what is newest.
    """
    # Of each family, how many rows are newer than the one that is looked at.
    newer: Counter[str] = Counter()
    ranks = {}
    for place in reversed(range(len(rows))):
        ranks[place] = newer[rows[place].family]
        newer[rows[place].family] += 1
    # Stable: of equal ranks the later row comes first, so that of one family the end of the list is kept.
    return [rows[place] for place in sorted(sorted(ranks, key=ranks.__getitem__)[:most])]


def items_of(table: pa.Table, pools: Iterable[str], families: Iterable[str] | None = None) -> list[PoolItem]:
    """Items of some pools, and of some families only, out of a table of all. A row is decoded if it is wanted:
    pools hold tens of thousands, and each wave asks for its own family."""
    table = rows_with(table, "pool", pools)
    return rows_of(PoolItem, table if families is None else rows_with(table, "family", families))


def transitions_of(ctx: StageContext, items: Sequence[PoolItem]) -> list[Transition]:
    """The rows of items of the pools, in their order."""
    wanted: dict[tuple[int, str], list[str]] = defaultdict(list)
    for item in items:
        wanted[item.round, item.stage].append(item.transition_id)
    rows = {}
    for place, ids in wanted.items():
        found = rows_with(ctx.table_at(Transition, *place), "transition_id", ids)
        rows.update({row.transition_id: row for row in rows_of(Transition, found)})
    return [rows[item.transition_id] for item in items]


class Store:
    """The transitions that predictions of a task family may be shown."""

    def __init__(self, ctx: StageContext, config: StoreConfig) -> None:
        """The pools that the stage reads, without those held out."""
        self._ctx, self._config = ctx, config
        self._table = ctx.table(PoolItem, POOL) if config.top_k else None
        self._rows: dict[str, list[Transition]] = {}
        self._index: dict[str, ExactIndex] = {}

    def nearest(
        self, family: str, situations: Sequence[Situation], episodes: Sequence[str] | None = None
    ) -> list[list[Transition]]:
        """The transitions most similar in state and action to each situation, the nearest first, oldest first where
        equally near; where `episodes` says of which episode each situation is, without those of that episode."""
        if self._table is None or not situations:
            return [[] for _ in situations]
        if family not in self._rows:
            searched = (REAL,) if self._config.search == "real" else (REAL, SYNTHETIC)
            items = items_of(self._table, searched, [family])
            self._rows[family] = transitions_of(self._ctx, items)
            if items:
                self._index[family] = ExactIndex(vectors_of(self._ctx, items))
        if not self._rows[family]:
            return [[] for _ in situations]
        count = self._config.top_k
        embedder = self._ctx.services.embedder()
        queries_QD = embedder.embed(searched_by(embedder, situations)[0])
        rows = self._rows[family]
        own = episodes or [""] * len(situations)
        # So many more are read that enough are left of them even where all of the episode are among the nearest.
        lengths = Counter(row.episode_id for row in rows)
        most = count + max(lengths[episode] for episode in own)
        found = []
        for (places_K, _), episode in zip(self._index[family].nearest(queries_QD, most), own, strict=True):
            near = (rows[int(place)] for place in places_K)
            found.append([row for row in near if row.episode_id != episode][:count])
        return found


def searched_by(embedder: Embedder, situations: Sequence[Situation]) -> tuple[list[str], list[bool]]:
    """The text that each situation is embedded as, state and action; and whether only its beginning is read. The action
    then comes first: two actions in one state would otherwise be the same."""
    texts = [each.query for each in situations]
    cuts = embedder.cuts(texts)
    return [
        f"{each.action}\n{each.observation}" if cut else text
        for each, text, cut in zip(situations, texts, cuts, strict=True)
    ], cuts


def vectors_of(ctx: StageContext, items: Sequence[PoolItem]) -> NDArray[np.float32]:
    """Unit vectors [N, D] of items of the pools."""
    wanted: dict[int, list[str]] = defaultdict(list)
    for item in items:
        wanted[item.entered].append(item.transition_id)
    vectors: dict[str, NDArray[np.float32]] = {}
    for entered, ids in wanted.items():
        table = rows_with(ctx.table_at(TransitionVector, entered, GATHER), "transition_id", ids)
        names, values = table["transition_id"].to_pylist(), table["vector"].combine_chunks().flatten()
        vectors.update(zip(names, values.to_numpy(zero_copy_only=False).reshape(len(names), -1), strict=True))
    return np.stack([vectors[item.transition_id] for item in items]).astype(np.float32)


def seen(ctx: StageContext, rows: Sequence[Transition]) -> list[bool]:
    """Of each row, whether the model could copy what follows it: whether a real step of its family with that state and
    action was ever in the store, for fits to learn and prompts to show. What left the store was learned before."""
    if not rows:
        return []
    entered: list[PoolItem] = []
    for number in range(1, ctx.round_of(POOL) + 1):
        table = ctx.table_at(PoolItem, number, GATHER)
        entered += items_of(table.filter(pc.equal(table["entered"], number)), [REAL])
    known = {(row.family, situation_of(row).query) for row in transitions_of(ctx, entered)}
    return [(row.family, situation_of(row).query) in known for row in rows]


def gather(ctx: StageContext) -> None:
    """The pools of a round: those of the round before, what was given before the first, what was collected since, what
    was explored now."""
    config = config_of(ctx.method).store
    arrived = []
    for name, number, stage in (
        (GIVEN, 0, GIVEN),
        ("collected", ctx.round_of("collected"), "collect"),
        ("explore", ctx.round, "explore"),
    ):
        arrived += [(row, number, stage) for row in ctx.rows(Transition, name)]
    before = ctx.rows(PoolItem, "before")
    new = [
        PoolItem(
            pool=pool_of(row), transition_id=row.transition_id, family=row.family, round=number, stage=stage,
            entered=ctx.round,
        )
        for row, number, stage in arrived
    ]  # fmt: skip
    items = gathered(before, new, config)
    kept = {item.transition_id for item in items if item.entered == ctx.round}
    entered = [row for row, _, _ in arrived if row.transition_id in kept]
    embedder = ctx.services.embedder()
    with ctx.timed("embed", len(entered)):
        texts, cuts = searched_by(embedder, [situation_of(row) for row in entered])
        vectors_ND = embedder.embed(texts)
    ctx.write(PoolItem, items)
    ctx.write(
        TransitionVector,
        [
            TransitionVector(transition_id=row.transition_id, vector=[float(value) for value in vector_D])
            for row, vector_D in zip(entered, vectors_ND, strict=True)
        ],
    )
    # `transitions_cut_by_embedder`: the share of what came in that the embedder reads only the beginning of.
    share = sum(cuts) / max(1, len(cuts))
    told = (
        f"the embedder reads only the beginning of {share:.0%} of the new transitions, which are found by their action "
        "and the beginning of their observation; choose one that reads longer texts (store.embedder)"
    )
    ctx.write_metrics({CUT: share} if cuts else {}, {CUT: told if share and config.top_k else None})


def fit_seed(method: Method, family: str, seed: int) -> bool:
    """Whether fits may see what is played on a training seed."""
    config = method.family(family)
    if config is None:
        return False
    return seed < config_of(method).held_out_from(config.train_seeds.start, config.train_seeds.count)


def split_of(method: Method, family: str, seed: int) -> str:
    """`fit` or `held_out`, by the seed."""
    return FIT if fit_seed(method, family, seed) else HELD_OUT
