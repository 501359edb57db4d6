"""Packed passes (`cache`) for a GPU, where each call costs as much as hundreds of padded queries.

In a :class:`PaddedPass` all rows attend in one call per layer, padded to the most new tokens of a row; rows that would
pad the others beyond that attend alone. Passes of a few new tokens per row are CUDA graphs (:class:`PassGraphs`):
recorded once, replayed with other numbers.

A pass of a small model on a GPU is hundreds of calls that each compute less than it takes to make them. A graph is all
of them in one. It computes equally many tokens in every row of the batch, over a fixed number of slots: those that a
row has too many are written to a slot that no row reaches, and nobody reads what they say.

Suffixes of tensors name their shapes: see `crl.policies`. Of padded rows N is the most new tokens of one;
T of a graph is R N.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from crl.policies.cache import Piece, RowCache, hiding, pass_logits
from crl.policies.machine import PASS_TOKENS

_CALL = 1024
"""Padded queries that cost as much as one more call in every layer."""
_ALIGNED = 16
"""Slots of a mask are a multiple: fused kernels would copy another one in every layer."""
_LOG = logging.getLogger(__name__)
_WIDTHS = (1, 16, 64)
"""Tokens per row of a graph: one that was drawn, a short piece, an observation."""
_SPANS = (512, 2048, 8192, 32768)
"""Slots that a graph attends to, up to all there are: few, because recording takes as long as some passes."""
_WASTE = 1e12
"""FLOP that a pass may compute for nobody: a few milliseconds at most, as long as the calls that it saves."""
_SEEN_BEFORE = 1
"""Passes of a shape that are made call by call before it is recorded."""
_REFUSED: WeakSet[Any] = WeakSet()
"""Models whose passes cannot be recorded."""


class PaddedPass:
    """One forward pass over the cache, as `cache.Pass`: give it to the model as `row_pass`, with `positions_T`."""

    def __init__(self, cache: RowCache, pieces: Sequence[Piece], device: torch.device) -> None:
        """`pieces`: in the order of the tokens; none twice, what rows share before what follows it."""
        self._cache = cache
        positions = [np.arange(piece.past, piece.length) for piece in pieces]
        firsts_P = np.cumsum([0, *(piece.count for piece in pieces)])
        stored = [
            (np.full(piece.count, row), np.arange(first, first + piece.count), own)
            for piece, first, own in zip(pieces, firsts_P, positions, strict=False)
            for row in piece.rows
        ]
        positions_T = np.concatenate(positions)
        self.positions_T = torch.from_numpy(positions_T).to(device)
        self._rows_N, self._places_N, self._slots_N = torch.from_numpy(
            np.stack([np.concatenate(each) for each in zip(*stored, strict=True)])
        ).to(device)
        places: dict[int, list[int]] = {}
        for piece, first in zip(pieces, firsts_P, strict=False):  # what rows share is attended to in the first of them
            places.setdefault(piece.rows[0], []).extend(range(first, first + piece.count))
        self._groups = [
            _Group({row: places[row] for row in rows}, positions_T, device)
            for rows in grouped({row: len(own) for row, own in places.items()})
        ]

    def attend(
        self, index: int, query_QTD: torch.Tensor, key_HTD: torch.Tensor, value_HTE: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """As `cache.Pass.attend`."""
        keys_RHCD, values_RHCE = self._cache.room(index, key_HTD, value_HTE)
        keys_RHCD[self._rows_N, :, self._slots_N] = key_HTD[:, self._places_N].transpose(0, 1)
        values_RHCE[self._rows_N, :, self._slots_N] = value_HTE[:, self._places_N].transpose(0, 1)
        query_HGTD = query_QTD.view(key_HTD.shape[0], -1, *query_QTD.shape[1:])
        found = [group.attend(query_HGTD, keys_RHCD, values_RHCE, scaling) for group in self._groups]
        if len(found) == 1:
            return found[0].flatten(1, 2)
        out_THGE = found[0].new_empty(query_HGTD.shape[2], *found[0].shape[1:])
        for group, part_THGE in zip(self._groups, found, strict=True):
            out_THGE[group.places_T] = part_THGE
        return out_THGE.flatten(1, 2)


class RowAttention:
    """Attention of equally many new tokens of some rows, in one call, in all layers of a pass."""

    def __init__(self, limits_AN: torch.Tensor) -> None:
        """`limits_AN`: the last slot that each token sees."""
        self._limits_AN = limits_AN
        self._masks: dict[int, torch.Tensor] = {}  # by G, in which layers may differ

    def attended(
        self, asked_AHGND: torch.Tensor, keys_AHCD: torch.Tensor, values_AHCE: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Outputs [A, H, G, N, E] of these queries, for the rows' own keys and values."""
        rows, heads, groups, _, width = asked_AHGND.shape
        if groups not in self._masks:
            slots_C = torch.arange(keys_AHCD.shape[2], device=keys_AHCD.device)
            mask_A11NC = hiding(slots_C > self._limits_AN[:, None, None, :, None], asked_AHGND.dtype)
            self._masks[groups] = mask_A11NC.expand(-1, -1, groups, -1, -1).flatten(2, 3)  # [A, 1, X, C]
        asked_AHXD = asked_AHGND.reshape(rows, heads, -1, width)
        found_AHXE = torch.nn.functional.scaled_dot_product_attention(
            asked_AHXD, keys_AHCD, values_AHCE, attn_mask=self._masks[groups], scale=scaling
        )
        return found_AHXE.view(*asked_AHGND.shape[:4], -1)


class _Group:
    """Rows that attend in one call."""

    def __init__(self, places: Mapping[int, Sequence[int]], positions_T: np.ndarray, device: torch.device) -> None:
        """`places`: of each row, its tokens among those of the pass."""
        rows = sorted(places)
        most = max(map(len, places.values()))
        # Padding asks what the first token of its row asks, and nobody reads the answer.
        index_AN = np.array([[*places[row], *[places[row][0]] * (most - len(places[row]))] for row in rows])
        self._index_AN = torch.from_numpy(index_AN).to(device)
        self._attention = RowAttention(torch.from_numpy(positions_T[index_AN]).to(device))
        self._reach = int(positions_T[index_AN].max()) + 1
        whole = rows == list(range(len(rows)))
        self._rows_A = slice(len(rows)) if whole else torch.tensor(rows, device=device)
        asked = sorted((place, a, n) for a, row in enumerate(rows) for n, place in enumerate(places[row]))
        self.places_T, self._a_T, self._n_T = torch.tensor(asked, device=device).T

    def attend(
        self, query_HGTD: torch.Tensor, keys_RHCD: torch.Tensor, values_RHCE: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Outputs [T, H, G, E] of this group's tokens, in their order."""
        span = min(-(-self._reach // _ALIGNED) * _ALIGNED, keys_RHCD.shape[2])
        asked_AHGND = query_HGTD[:, :, self._index_AN].permute(2, 0, 1, 3, 4)
        keys_AHCD, values_AHCE = keys_RHCD[self._rows_A, :, :span], values_RHCE[self._rows_A, :, :span]
        found_AHGNE = self._attention.attended(asked_AHGND, keys_AHCD, values_AHCE, scaling)
        return found_AHGNE[self._a_T, :, :, self._n_T]


def grouped(counts: Mapping[int, int]) -> list[list[int]]:
    """Rows with so many new tokens each, in groups that attend in one call: those with few together, others alone."""
    ordered = sorted(counts, key=lambda row: (counts[row], row))

    def cost(together: int) -> int:
        alone = ordered[together:]
        return together * counts[ordered[together - 1]] + sum(_CALL + counts[row] for row in alone)

    # No more queries than a pass may have tokens, which bounds the memory of masks.
    most = max(PASS_TOKENS, sum(counts.values()))
    few = [number for number in range(1, len(ordered) + 1) if number * counts[ordered[number - 1]] <= most]
    together = min(few, key=cost)
    return [ordered[:together], *([row] for row in ordered[together:])]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What replays of one width read."""

    tokens_3RN: torch.Tensor
    """Of each token: its id, how many are before it, the slot to write to."""
    ends_R: torch.Tensor
    """The last token of each row, among all T."""


class PassGraphs:
    """The graphs of one session. They hold for one model and one cache that stays where it is."""

    def __init__(self, model: Any, cache: RowCache) -> None:
        self._model, self._cache = model, cache
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._numbers: dict[int, _Numbers] = {}
        self._seen: Counter[tuple[int, int]] = Counter()
        self._beside: Any = None
        self._pool: Any = None
        self._parameters = sum(parameter.numel() for parameter in model.parameters())

    def logits(self, rows: Sequence[int], pasts: Sequence[int], ids: Sequence[Sequence[int]]) -> torch.Tensor | None:
        """The logits [B, V] after the last of these ids of each of the rows, which hold so many before them; None where
        the pass is to be made call by call."""
        most, tokens = max(map(len, ids)), sum(map(len, ids))
        width = next((each for each in _WIDTHS if most <= each), None)
        if width is None or self._model in _REFUSED:
            return None
        computed = width * self._cache.rows
        if width > 1 and (computed > PASS_TOKENS or (computed - tokens) * 2 * self._parameters > _WASTE):
            return None
        reach = max(past + len(own) for past, own in zip(pasts, ids, strict=True))
        shape = width, min(next(each for each in (*_SPANS, self._cache.slots) if each >= reach), self._cache.slots)
        self._seen[shape] += 1
        if self._seen[shape] <= _SEEN_BEFORE:
            return None
        self._write(width, rows, pasts, ids)
        if shape not in self._graphs and not self._record(*shape):
            return None
        graph, logits_RV = self._graphs[shape]
        graph.replay()
        return logits_RV[torch.tensor(list(rows), device=logits_RV.device)]

    def clear(self) -> None:
        """Free what the graphs hold."""
        self._graphs.clear()
        self._numbers.clear()
        self._seen.clear()
        self._pool = None

    def _write(self, width: int, rows: Sequence[int], pasts: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """Tell the graphs of a width what to read."""
        count, device = self._cache.rows, self._model.device
        if width not in self._numbers:
            tokens_3RN = torch.zeros(3, count, width, dtype=torch.long, device=device)
            self._numbers[width] = _Numbers(tokens_3RN, torch.zeros(count, dtype=torch.long, device=device))
        lengths_B = np.array([len(own) for own in ids])
        firsts_B = np.cumsum(lengths_B) - lengths_B
        within_T = np.arange(lengths_B.sum()) - np.repeat(firsts_B, lengths_B)
        positions_T = np.repeat(pasts, lengths_B) + within_T
        told_3RN = np.zeros((3, count, width), dtype=np.int64)
        told_3RN[2] = self._cache.slots - 1
        told_3RN[:, np.repeat(rows, lengths_B), within_T] = [list(chain.from_iterable(ids)), positions_T, positions_T]
        ends_R = np.arange(count) * width
        ends_R[list(rows)] += lengths_B - 1
        self._numbers[width].tokens_3RN.copy_(torch.from_numpy(told_3RN))
        self._numbers[width].ends_R.copy_(torch.from_numpy(ends_R))

    def _record(self, width: int, span: int) -> bool:
        """Whether the graph of this shape could be made. Raises OutOfMemoryError."""
        current = torch.cuda.current_stream()
        self._beside = self._beside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        debug = torch.cuda.get_sync_debug_mode()
        try:
            self._beside.wait_stream(current)
            # Libraries set themselves up, with the same numbers at the same places; what waits for the GPU is an error.
            torch.cuda.set_sync_debug_mode("error")
            try:
                with torch.cuda.stream(self._beside):
                    self.computed(width, span)
            finally:
                torch.cuda.set_sync_debug_mode(debug)
                current.wait_stream(self._beside)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            where = {"pool": self._pool, "stream": self._beside, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, **where):
                logits_RV = self.computed(width, span)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # Some models decide by what they computed, which experts for instance; a graph cannot.
            torch.cuda.set_stream(current)  # a recording that fails leaves its own
            _REFUSED.add(self._model)
            _LOG.warning("passes of this model cannot be recorded as CUDA graphs, sampling is slower: %s", error)
            return False
        self._graphs[width, span] = graph, logits_RV
        return True

    def computed(self, width: int, span: int) -> torch.Tensor:
        """The logits [R, V] that a graph of this shape records."""
        numbers = self._numbers[width]
        ids_RN, positions_RN, slots_RN = numbers.tokens_3RN
        every = _EveryRow(self._cache, positions_RN, slots_RN, span)
        return pass_logits(self._model, ids_RN.flatten(), positions_RN.flatten(), numbers.ends_R, every)


class _EveryRow:
    """A pass over the whole cache (`cache.Pass`), row by row, whose numbers are read when it is replayed."""

    def __init__(self, cache: RowCache, positions_RN: torch.Tensor, slots_RN: torch.Tensor, span: int) -> None:
        self._cache, self._span, self._slots_RN = cache, span, slots_RN
        self._rows_R1 = torch.arange(cache.rows, device=slots_RN.device)[:, None]
        self._attention = RowAttention(positions_RN)

    def attend(
        self, index: int, query_QTD: torch.Tensor, key_HTD: torch.Tensor, value_HTE: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """As `cache.Pass.attend`."""
        keys_RHCD, values_RHCE = self._cache.room(index, key_HTD, value_HTE)
        by_row = key_HTD.shape[0], *self._slots_RN.shape, -1
        keys_RHCD[self._rows_R1, :, self._slots_RN] = key_HTD.reshape(by_row).permute(1, 2, 0, 3)
        values_RHCE[self._rows_R1, :, self._slots_RN] = value_HTE.reshape(by_row).permute(1, 2, 0, 3)
        asked_HGRND = query_QTD.reshape(len(key_HTD), -1, *self._slots_RN.shape, query_QTD.shape[2])
        found_RHGNE = self._attention.attended(
            asked_HGRND.permute(2, 0, 1, 3, 4), keys_RHCD[:, :, : self._span], values_RHCE[:, :, : self._span], scaling
        )
        return found_RHGNE.permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
