"""Keys and values of many rows, and attention over them for packed passes.

A **pass** is a flat list of new tokens of any rows, without padding: the projections of a model see all of them at
once, and attention goes row by row. A **piece** is the run of new tokens of one row; a piece that several rows share at
their start is computed once and stored in each of them. Row r has its own length: new keys are written behind it, in
slots without holes.

Transformers' models find this attention under the name :data:`ATTENTION`, and it finds the pass among their keyword
arguments; calls without one (scoring) get transformers' scaled dot product attention.

Suffixes of tensors name their shapes: see `crl.policies`.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from crl.config.models import EveryLayerOnce, check_plain
from crl.policies.machine import row_slots

ATTENTION = "crl_rows"
"""Name of this attention among transformers' implementations."""

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x4000 if sys.platform == "linux" else 0)
"""On Linux also MAP_NORESERVE: room for more than the machine's memory is given, since rows may be short."""
_TOGETHER = 0.5
"""Rows of one new token are attended to as one batch while they are at least this share of the rows up to the last of
them; those between ride along unseen. Fewer are cheaper one by one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens of one row, or what several rows begin with.

    Attributes:
        rows: where they are stored; their attention sees the first of these rows.
        past: tokens that those rows hold before them, equally many.
        count: new tokens, at least one.
    """

    rows: tuple[int, ...]
    past: int
    count: int

    @property
    def length(self) -> int:
        """Tokens of the rows after them."""
        return self.past + self.count


class RowCache:
    """Keys [R, H, C, D] and values [R, H, C, E] of all layers. The caller knows each row's length."""

    def __init__(self, layers: int, rows: int, longest: int) -> None:
        """`longest`: tokens of a row that is full. Keys and values stay where they are, which a graph of a pass needs
        (`pass_graph`), as it does a slot that no row reaches."""
        self.rows, self.slots = rows, row_slots(longest)
        self._layers: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * layers

    def room(self, index: int, key_HTD: torch.Tensor, value_HTE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer. Those of some tokens say the rest; values may be narrower."""
        states = self._layers[index]
        if states is None:
            # Zeros: a hidden slot has weight 0, and 0 times a stray NaN is NaN.
            shapes = [(self.rows, new.shape[0], self.slots, new.shape[2]) for new in (key_HTD, value_HTE)]
            self._layers[index] = states = _zeros(shapes[0], key_HTD), _zeros(shapes[1], value_HTE)
        return states

    def copy(self, source: int, target: int, slots: slice) -> None:
        """Give a row what another holds in these slots."""
        for states in (states for layer in self._layers for states in layer or ()):
            states[target, :, slots] = states[source, :, slots]

    def clear(self) -> None:
        """Free everything."""
        self._layers = [None] * len(self._layers)

    @property
    def nbytes(self) -> int:
        """Bytes that they have room for."""
        return sum(states.numel() * states.element_size() for layer in self._layers for states in layer or ())


class Pass:
    """One forward pass over the cache. Give it to the model as `row_pass`, with `positions_T` and no cache."""

    def __init__(self, cache: RowCache, pieces: Sequence[Piece], device: torch.device) -> None:
        """`pieces`: in the order of the tokens; none twice, what rows share before what follows it."""
        self._cache, self._device = cache, device
        self._pieces = list(pieces)
        self._firsts = [0]
        for piece in pieces:
            self._firsts.append(self._firsts[-1] + piece.count)
        self.positions_T = torch.cat([torch.arange(piece.past, piece.length) for piece in pieces]).to(device)
        stored = [(row, place, slot) for place, slot, rows in self._tokens() for row in rows]
        self._rows_N, self._places_N, self._slots_N = torch.tensor(stored, device=device).T
        # What rows share is attended to in the first of them, which may have a token of its own in this pass.
        single = [index for index, piece in enumerate(pieces) if piece.count == 1 and len(piece.rows) == 1]
        self._reach = 1 + max((pieces[index].rows[0] for index in single), default=0)
        if len(single) < 2 or len(single) < _TOGETHER * self._reach:
            single = []
        self._apart = sorted(set(range(len(pieces))) - set(single))
        self._single_rows_S = torch.tensor([pieces[index].rows[0] for index in single], dtype=torch.long, device=device)
        self._single_places_S = torch.tensor([self._firsts[index] for index in single], dtype=torch.long, device=device)
        self._lengths_R = torch.ones(self._reach, dtype=torch.long, device=device)
        lengths = [pieces[index].length for index in single]
        self._lengths_R[self._single_rows_S] = torch.tensor(lengths, dtype=torch.long, device=device)
        self._span = max(lengths, default=0)
        self._masks: dict[tuple[int, int], torch.Tensor] = {}

    def _tokens(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(place in the pass, slot, rows) of each token."""
        return [
            (first + number, piece.past + number, piece.rows)
            for piece, first in zip(self._pieces, self._firsts, strict=False)
            for number in range(piece.count)
        ]

    def attend(
        self, index: int, query_QTD: torch.Tensor, key_HTD: torch.Tensor, value_HTE: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Store the new tokens' keys and values of a layer, and attend from each token to its row up to itself.

        Args:
            index: the layer.
            query_QTD: of all query heads.
            key_HTD: of the new tokens.
            value_HTE: of the new tokens.
            scaling: factor of the products.

        Returns:
            What is found, [T, Q, E].
        """
        keys_RHCD, values_RHCE = self._cache.room(index, key_HTD, value_HTE)
        keys_RHCD[self._rows_N, :, self._slots_N] = key_HTD[:, self._places_N].transpose(0, 1)
        values_RHCE[self._rows_N, :, self._slots_N] = value_HTE[:, self._places_N].transpose(0, 1)
        # Heads that share keys become so many queries of one head: several times as fast on the CPU as copying keys.
        query_HGTD = query_QTD.view(key_HTD.shape[0], -1, *query_QTD.shape[1:])
        out_THGE = query_QTD.new_empty(query_HGTD.shape[2], *query_HGTD.shape[:2], value_HTE.shape[2])
        if len(self._single_rows_S):
            query_RHGD = query_QTD.new_zeros(self._reach, *query_HGTD.shape[:2], query_HGTD.shape[3])
            query_RHGD[self._single_rows_S] = query_HGTD[:, :, self._single_places_S].movedim(2, 0)
            found_RHGE = torch.nn.functional.scaled_dot_product_attention(
                query_RHGD,
                keys_RHCD[: self._reach, :, : self._span],
                values_RHCE[: self._reach, :, : self._span],
                attn_mask=self._until_length(query_RHGD.shape[2], query_QTD.dtype),
                scale=scaling,
            )
            out_THGE[self._single_places_S] = found_RHGE[self._single_rows_S]
        for number in self._apart:
            piece, first = self._pieces[number], self._firsts[number]
            row, part_HGND = piece.rows[0], query_HGTD[:, :, first : first + piece.count]
            found_1HXE = torch.nn.functional.scaled_dot_product_attention(
                part_HGND.reshape(1, part_HGND.shape[0], -1, part_HGND.shape[3]),
                keys_RHCD[None, row, :, : piece.length],
                values_RHCE[None, row, :, : piece.length],
                attn_mask=self._causal(piece, part_HGND.shape[1], query_QTD.dtype),
                scale=scaling,
            )
            out_THGE[first : first + piece.count] = found_1HXE.view(*part_HGND.shape[:3], -1).movedim(2, 0)
        return out_THGE.flatten(1, 2)

    def _until_length(self, heads: int, dtype: torch.dtype) -> torch.Tensor:
        """Mask [R, 1, G, C] that hides what is behind a row's length."""
        if (0, heads) not in self._masks:
            hidden_R11C = torch.arange(self._span, device=self._device) >= self._lengths_R[:, None, None, None]
            self._masks[0, heads] = hiding(hidden_R11C, dtype).expand(-1, -1, heads, -1)
        return self._masks[0, heads]

    def _causal(self, piece: Piece, heads: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Mask [1, 1, X, C] that hides what comes after each token; None for one token."""
        if piece.count == 1:
            return None
        shape = (piece.count, piece.past)
        if shape not in self._masks:
            ones_NC = torch.ones(piece.count, piece.length, dtype=torch.bool, device=self._device)
            self._masks[shape] = hiding(ones_NC.triu(piece.past + 1), dtype).repeat(heads, 1)[None, None]
        return self._masks[shape]


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Zeros of a type and on a device. On a CPU a page of them takes memory, and time, when it is first written."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    private = mmap.mmap(-1, math.prod(shape) * like.element_size(), flags=_PRIVATE)
    with contextlib.suppress(AttributeError, OSError):  # huge pages would span the rooms of several short rows
        private.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(private, dtype=like.dtype).view(shape)


def hiding(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores: minus infinity where they are hidden."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(hidden, float("-inf"))


def pass_logits(
    model: Any, ids_T: torch.Tensor, positions_T: torch.Tensor, ends_B: torch.Tensor, row_pass: Any
) -> torch.Tensor:
    """The logits [B, V] of a pass after each of its tokens in `ends_B`. `row_pass` attends as :class:`Pass` does.

    Raises BadInput for a model that would compute something else (`EveryLayerOnce`).
    """
    # A mask of four dimensions is taken as it is; the attention of a pass makes its own.
    mask_1111 = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=ids_T.device)
    with EveryLayerOnce(model, mask_1111):
        output = model(
            input_ids=ids_T[None],
            position_ids=positions_T[None],
            attention_mask=mask_1111,
            use_cache=False,
            logits_to_keep=ends_B,
            row_pass=row_pass,
        )
    logits_BV: torch.Tensor = output.logits[0]
    return logits_BV


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    row_pass: Pass | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers' models call; [1, Q, T, D] to [1, T, Q, E] in a pass. Raises BadInput for an argument that
    changes what attention computes."""
    check_plain(module, kwargs)
    EveryLayerOnce.attends(module, attention_mask, has_mask=row_pass is not None)
    if row_pass is None:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return found, None
    factor = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    return row_pass.attend(module.layer_idx, query[0], key[0], value[0], factor)[None], None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
