"""A key-value cache whose rows grow independently, for transformers' models.

`DynamicCache` joins new keys behind the longest row, so a ragged batch collects holes, and copies the whole cache for
each token. Here row b has its own length: new keys are written in place behind it (slots 0 to length-1 are its tokens,
in order, without holes), and the attention mask hides the rest. Slots are allocated in blocks. One slot more
than can be attended takes what padding writes.

Shapes: R rows, B rows of one forward pass, H key-value heads, C slots, Q new tokens, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import Cache, DynamicLayer

_BLOCK = 64
"""Slots allocated at once: few reallocations, little waste, also for episodes of fifty tokens."""


@dataclass(slots=True)
class _Pass:
    """Where the keys of the next forward pass go; shared by all layers."""

    start: int = 0
    """First row of the pass."""
    stop: int = 1
    """One past its last row."""
    span: int = 0
    """Slots that can be attended: the longest row after the pass."""
    slots_BQ: torch.Tensor | None = None
    """Slot of each new token; a slot beyond the span is padding. None: the same slots in all rows (`first`)."""
    first: int = 0
    """First slot written where all rows agree."""


class _RowLayer(DynamicLayer):
    """One layer's keys and values, [R, H, C + 1, D]; the last slot is the one padding writes to."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, current: _Pass, rows: int) -> None:
        super().__init__()
        self.current, self.rows = current, rows

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        # Zeros, not empty memory: a hidden slot has weight 0, and 0 times a stray NaN would still be NaN.
        self.keys = key_states.new_zeros(self.rows, key_states.shape[1], 1, key_states.shape[3])
        self.values = value_states.new_zeros(self.rows, value_states.shape[1], 1, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values [B, H, Q, D] and return views of what can be attended, [B, H, span, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        current = self.current
        if self.keys.shape[2] <= current.span:
            self.keys = _grown(self.keys, current.span)
            self.values = _grown(self.values, current.span)
        keys = self.keys[current.start : current.stop]
        values = self.values[current.start : current.stop]
        if current.slots_BQ is None:
            stop = current.first + key_states.shape[2]
            keys[:, :, current.first : stop] = key_states
            values[:, :, current.first : stop] = value_states
        else:
            slots_BQ = current.slots_BQ.clamp(max=keys.shape[2] - 1)
            rows_B1 = torch.arange(len(keys), device=slots_BQ.device)[:, None]
            keys[rows_B1, :, slots_BQ] = key_states.transpose(1, 2)
            values[rows_B1, :, slots_BQ] = value_states.transpose(1, 2)
        return keys[:, :, : current.span], values[:, :, : current.span]

    def get_seq_length(self) -> int:
        """Slots that can be attended in the current pass. Positions and masks are always given by the caller."""
        return self.current.span


class RowCache(Cache):
    """The cache of all layers. The caller knows each row's length; this class knows only where to write."""

    def __init__(self, layers: int, rows: int) -> None:
        self._current = _Pass()
        self._used = 0  # slots that any row may hold
        self.rows = rows
        self._row_layers = [_RowLayer(self._current, rows) for _ in range(layers)]
        super().__init__(layers=list(self._row_layers))

    def plan(self, rows: range, slots_BQ: NDArray[np.int64], span: int, device: torch.device) -> None:
        """Say where the next forward pass writes.

        Args:
            rows: consecutive rows that take part.
            slots_BQ: slot of each new token, consecutive in a row; padding has a slot ≥ span.
            span: length of the longest of these rows after the pass.
            device: the model's.
        """
        current = self._current
        current.start, current.stop, current.span = rows.start, rows.stop, span
        self._used = max(self._used, span)
        current.first = int(slots_BQ[0, 0])
        # Equal ends mean equal slots, none of them padding: a plain slice is written.
        uniform = (slots_BQ[:, 0] == current.first).all() and (slots_BQ[:, -1] == span - 1).all()
        current.slots_BQ = None if uniform else torch.from_numpy(slots_BQ).to(device)

    def select(self, rows: list[int]) -> None:
        """Make row i what was row `rows[i]`; a row may be named again (expansion) or left out (dropped)."""
        moved = [i for i, row in enumerate(rows) if i != row]
        in_place = len(rows) == self.rows
        for layer in self._row_layers:
            if not layer.is_initialized:
                layer.rows = len(rows)
                continue
            if in_place and moved:
                source = torch.tensor([rows[i] for i in moved], device=layer.device)
                target = torch.tensor(moved, device=layer.device)
                layer.keys[target] = layer.keys[source]
                layer.values[target] = layer.values[source]
            elif not in_place:
                index = torch.tensor(rows, dtype=torch.long, device=layer.device)
                layer.keys = _selected(layer.keys, index, self._used)
                layer.values = _selected(layer.values, index, self._used)
        self.rows = len(rows)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in self._row_layers
            if layer.is_initialized
            for tensor in (layer.keys, layer.values)
        )


def _selected(states: torch.Tensor, index: torch.Tensor, used: int) -> torch.Tensor:
    """The states of the rows of an index; slots that nobody has written yet are not copied."""
    selected = _room(states, len(index), used)
    selected[:, :, :used] = states[:, :, :used][index]
    return selected


def _grown(states: torch.Tensor, span: int) -> torch.Tensor:
    """The same states with room for `span` slots and the padding slot."""
    grown = _room(states, len(states), span)
    grown[:, :, : states.shape[2]] = states
    return grown


def _room(states: torch.Tensor, rows: int, span: int) -> torch.Tensor:
    """Zeros for so many rows of `span` slots and the padding slot, rounded up to whole blocks."""
    return states.new_zeros(rows, states.shape[1], -(-(span + 1) // _BLOCK) * _BLOCK, states.shape[3])
