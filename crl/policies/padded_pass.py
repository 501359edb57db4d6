"""A packed pass (`cache`) for a GPU: all rows attend in one call per layer, padded to the most new tokens of a row.

There, each call costs as much as hundreds of padded queries. Rows that would pad the others beyond that attend alone.

Shapes: T tokens of a pass, A rows that attend together, N most new tokens of one of them, R rows, Hq query and H
key-value heads, G = Hq / H, C slots, D width of a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from crl.policies.cache import Piece, RowCache, hiding
from crl.policies.machine import PASS_TOKENS

_CALL = 1024
"""Padded queries that cost as much as one more call in every layer."""
_ALIGNED = 16
"""Slots of a mask are a multiple: fused kernels would copy another one in every layer."""


class PaddedPass:
    """One forward pass over the cache, as `cache.Pass`: give it to the model as `row_pass`, with `positions_T`."""

    def __init__(self, cache: RowCache, pieces: Sequence[Piece], device: torch.device) -> None:
        """`pieces`: in the order of the tokens; none twice, what rows share before what follows it."""
        self._cache = cache
        positions = [np.arange(piece.past, piece.length) for piece in pieces]
        firsts = np.cumsum([0, *(piece.count for piece in pieces)])
        stored = [
            (np.full(piece.count, row), np.arange(first, first + piece.count), own)
            for piece, first, own in zip(pieces, firsts, positions, strict=False)
            for row in piece.rows
        ]
        positions_T = np.concatenate(positions)
        self.positions_T = torch.from_numpy(positions_T).to(device)
        self._rows_N, self._places_N, self._slots_N = torch.from_numpy(
            np.stack([np.concatenate(each) for each in zip(*stored, strict=True)])
        ).to(device)
        places: dict[int, list[int]] = {}
        for piece, first in zip(pieces, firsts, strict=False):  # what rows share is attended to in the first of them
            places.setdefault(piece.rows[0], []).extend(range(first, first + piece.count))
        self._groups = [
            _Group({row: places[row] for row in rows}, positions_T, device)
            for rows in grouped({row: len(own) for row, own in places.items()})
        ]

    def attend(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """As `cache.Pass.attend`: queries [Hq, T, D], keys [H, T, D] and values [H, T, E]; outputs [T, Hq, E]."""
        keys, values = self._cache.room(index, key, value)
        keys[self._rows_N, :, self._slots_N] = key[:, self._places_N].transpose(0, 1)
        values[self._rows_N, :, self._slots_N] = value[:, self._places_N].transpose(0, 1)
        query = query.view(key.shape[0], -1, *query.shape[1:])  # [H, G, T, D]
        found = [group.attend(query, keys, values, scaling) for group in self._groups]
        if len(found) == 1:
            return found[0].flatten(1, 2)
        out = found[0].new_empty(query.shape[2], *found[0].shape[1:])
        for group, part in zip(self._groups, found, strict=True):
            out[group.places] = part
        return out.flatten(1, 2)


class RowAttention:
    """Attention of equally many new tokens of some rows, in one call, in all layers of a pass."""

    def __init__(self, limits_AN: torch.Tensor) -> None:
        """`limits_AN`: the last slot that each token sees."""
        self._limits_AN = limits_AN
        self._masks: dict[int, torch.Tensor] = {}  # by G, in which layers may differ

    def found(self, asked: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """Outputs [A, H, G, N, E] of the queries `asked` [A, H, G, N, D], for the rows' own keys [A, H, C, D] and
        values [A, H, C, E]."""
        rows, heads, groups, _, width = asked.shape
        if groups not in self._masks:
            hidden = torch.arange(keys.shape[2], device=keys.device) > self._limits_AN[:, None, None, :, None]
            mask = hiding(hidden, asked.dtype)
            self._masks[groups] = mask.expand(-1, -1, groups, -1, -1).flatten(2, 3)  # [A, 1, G N, C]
        found = torch.nn.functional.scaled_dot_product_attention(
            asked.reshape(rows, heads, -1, width), keys, values, attn_mask=self._masks[groups], scale=scaling
        )
        return found.view(*asked.shape[:4], -1)


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
        self.places, self._a, self._n = torch.tensor(asked, device=device).T

    def attend(
        self, query_HGTD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Outputs [T, H, G, E] of this group's tokens, in their order."""
        span = min(-(-self._reach // _ALIGNED) * _ALIGNED, keys.shape[2])
        asked = query_HGTD[:, :, self._index_AN].permute(2, 0, 1, 3, 4)
        keys, values = keys[self._rows_A, :, :span], values[self._rows_A, :, :span]
        return self._attention.found(asked, keys, values, scaling)[self._a, :, :, self._n]


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
