"""Passes of one new token per row as CUDA graphs: recorded once, replayed with other numbers.

Decoding a token of a small model on a GPU takes hundreds of calls that each compute less than it takes to make them. A
graph is all of them in one. It computes every row of the batch, over keys and values up to a power of two of slots;
rows that draw nothing write to a slot that no row reaches, and nobody reads what they say.

Shapes: R rows of the cache, Hq query and H key-value heads, G = Hq / H, D head size, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from crl.policies.cache import RowCache

_LOG = logging.getLogger(__name__)
_SMALLEST = 128
"""Slots of the shortest graph."""
_SEEN_BEFORE = 2
"""Passes of a length that are made call by call before it is recorded, which takes as long as three of them."""


class DecodeGraphs:
    """The graphs of one session, by their number of slots. They hold for one model and one cache at one place."""

    def __init__(self, model: Any, cache: RowCache) -> None:
        self._model, self._cache = model, cache
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._seen: Counter[int] = Counter()
        self._pool: Any = None
        self._works = True
        self.numbers_3R = torch.zeros(3, cache.rows, dtype=torch.long, device=model.device)
        """Of each row: the id that it reads, how many are before it, the slot to write to."""

    def logits(self, rows: Sequence[int], pasts: Sequence[int], ids: Sequence[int]) -> torch.Tensor | None:
        """The logits [B, V] after one id of each of these rows, which hold so many before it; None where the pass is to
        be made call by call."""
        span = _SMALLEST
        while span <= max(pasts):
            span *= 2
        span = min(span, self._cache.slots)
        self._seen[span] += 1
        if not self._works or self._seen[span] <= _SEEN_BEFORE:
            return None
        numbers = [[0] * self._cache.rows, [0] * self._cache.rows, [self._cache.slots - 1] * self._cache.rows]
        for row, past, index in zip(rows, pasts, ids, strict=True):
            numbers[0][row], numbers[1][row], numbers[2][row] = index, past, past
        self.numbers_3R.copy_(torch.tensor(numbers))
        if span not in self._graphs and not self._record(span):
            return None
        graph, logits_RV = self._graphs[span]
        graph.replay()
        return logits_RV[torch.tensor(list(rows), device=logits_RV.device)]

    def clear(self) -> None:
        """Free what the graphs hold."""
        self._graphs.clear()
        self._seen.clear()
        self._pool = None

    def _record(self, span: int) -> bool:
        try:
            current, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(current)
            with torch.cuda.stream(beside):  # libraries set themselves up; the same numbers at the same places
                self.computed(span)
            current.wait_stream(beside)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                logits_RV = self.computed(span)
        except RuntimeError as error:
            # Some models decide by what they computed, which experts for instance; a graph cannot.
            self._works = False
            _LOG.warning("passes of this model cannot be recorded as CUDA graphs, sampling is slower: %s", error)
            return False
        self._graphs[span] = graph, logits_RV
        return True

    def computed(self, span: int) -> torch.Tensor:
        """The logits [R, V] that a graph of so many slots records."""
        ids_R, positions_R, _ = self.numbers_3R
        output = self._model(
            input_ids=ids_R[None],
            position_ids=positions_R[None],
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=self._model.dtype, device=ids_R.device),
            use_cache=False,
            row_pass=_EveryRow(self._cache, self.numbers_3R, span),
        )
        logits_RV: torch.Tensor = output.logits[0]
        return logits_RV


class _EveryRow:
    """A pass of one token in each row of the cache (`cache.Pass`), whose numbers are read when it is replayed."""

    def __init__(self, cache: RowCache, numbers_3R: torch.Tensor, span: int) -> None:
        self._cache, self._span = cache, span
        _, self._positions_R, self._slots_R = numbers_3R
        self._rows_R = torch.arange(cache.rows, device=numbers_3R.device)
        self._mask: torch.Tensor | None = None

    def attend(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """As `cache.Pass.attend`, of tokens [·, R, ·] one to a row."""
        keys, values = self._cache.room(index, self._span, key)
        keys[self._rows_R, :, self._slots_R] = key.transpose(0, 1)
        values[self._rows_R, :, self._slots_R] = value.transpose(0, 1)
        asked_RHGD = query.view(key.shape[0], -1, *query.shape[1:]).movedim(2, 0)
        if self._mask is None:
            hidden = torch.arange(self._span, device=key.device) > self._positions_R[:, None, None, None]
            mask = torch.zeros(hidden.shape, dtype=key.dtype, device=key.device).masked_fill(hidden, float("-inf"))
            self._mask = mask.expand(-1, -1, asked_RHGD.shape[2], -1)
        found_RHGD = torch.nn.functional.scaled_dot_product_attention(
            asked_RHGD, keys[:, :, : self._span], values[:, :, : self._span], attn_mask=self._mask, scale=scaling
        )
        return found_RHGD.flatten(1, 2)
