"""Rows whose keys and values this project keeps itself, read in packed passes: the fast way of `BatchSession`.

What rows share at their start is read once for all that come into the batch together, and a row that comes later takes
over what it shares with those that are there, or were last. A forward pass holds whatever each row has to read, without
padding (`crl/policies/cache.py`).

Suffixes of tensors: see `crl.policies`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from crl.policies.cache import Pass, Piece, RowCache, pass_logits
from crl.policies.machine import PASS_TOKENS
from crl.policies.pass_graph import PaddedPass, PassGraphs
from crl.text.prefixes import shared_prefix

_WORTH = 16
"""Tokens that reading once must spare, over all rows that share; each piece costs some calls of its own."""


class PackedRows:
    """See the module. A row is named by its index among the prompts (protocol `crl.policies.session.Rows`)."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], limit: int, context: int) -> None:
        """
        Args:
            model: a transformers causal language model in evaluation mode, with the attention of `cache`.
            prompts: what each row begins with.
            limit: most rows that are held at one time.
            context: longest row in tokens.
        """
        self._model, self._prompts = model, list(prompts)
        on_gpu = model.device.type == "cuda"
        self._cache = RowCache(model.config.get_text_config().num_hidden_layers, limit, context)
        self._graphs = PassGraphs(model, self._cache) if on_gpu else None
        self._pass: type[Pass | PaddedPass] = PaddedPass if on_gpu else Pass
        self._free = list(range(limit))
        self._place: dict[int, int] = {}  # cache row of each row that is in the batch
        self._left: dict[int, list[int]] = {}  # what free cache rows still hold: the start of the row that left
        self._cached = dict.fromkeys(range(len(prompts)), 0)  # tokens of each row that are in the cache

    def keep(self, row: int, count: int, token_ids: Sequence[int]) -> int:
        """Forget what a row holds behind its first `count` ids: new keys are written over it."""
        self._prompts[row], self._cached[row] = token_ids, count
        return count

    def drop(self, row: int) -> None:
        """Free a row, which may be held or not."""
        if row in self._place:
            place = self._place.pop(row)
            self._free.append(place)
            self._left[place] = list(self._prompts[row][: self._cached[row]])

    def clear(self) -> None:
        """Free everything."""
        self._cache.clear()
        if self._graphs is not None:
            self._graphs.clear()

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values have room for; on a CPU what is never written takes no memory."""
        return self._cache.nbytes

    def read(self, pending: Mapping[int, list[int]]) -> tuple[list[int], torch.Tensor]:
        """Read ids, at least one of each row, behind what the rows hold; rows that are not held yet are taken in.

        Returns:
            The rows in the order of the logits, and the logits after each row's last token, [B, V].
        """
        self._free.sort(reverse=True)
        for row in pending:
            if row not in self._place:
                self._place[row] = self._free.pop()
        fresh = {row: ids for row, ids in pending.items() if not self._cached[row]}
        waiting = [
            *self._taken_over(_shared_at_start(fresh), fresh),
            *(_Reading((row,), ids, row) for row, ids in pending.items() if self._cached[row]),
        ]
        waiting.reverse()
        order: list[int] = []
        logits = []
        while waiting:
            room, taken = PASS_TOKENS, list[_Reading]()
            while waiting and room:
                reading = waiting.pop()
                if len(reading.ids) > room:
                    waiting.append(replace(reading, ids=reading.ids[room:], skipped=0))
                    reading = replace(reading, ids=reading.ids[:room], ends=None)
                taken.append(reading)
                room -= len(reading.ids)
            order += [reading.ends for reading in taken if reading.ends is not None]
            logits.append(self._forward(taken))
        return order, logits[0] if len(logits) == 1 else torch.cat(logits)

    def _taken_over(self, readings: Sequence[_Reading], pending: Mapping[int, list[int]]) -> list[_Reading]:
        """Readings without what the cache holds: left in a row's own place, or copied from another one's."""
        if not readings:
            return []
        there = {place: list(self._prompts[row][: self._cached[row]]) for row, place in self._place.items()}
        coming = dict.fromkeys(row for reading in readings for row in reading.rows)
        own = {row: self._left.pop(self._place[row], []) for row in coming}
        others = {place: ids for place, ids in (there | self._left).items() if ids}
        if not others and not any(own.values()):
            return list(readings)
        # Most tokens of a row that are held: in its place, in another, and in which.
        held: dict[int, tuple[int, int, int]] = {}
        for row in own:
            ids = pending[row]
            length, place = max(
                ((shared_prefix(ids, other), place) for place, other in others.items()), default=(0, -1)
            )
            held[row] = shared_prefix(ids, own[row]), length, place
        kept, begun, passed = [], dict.fromkeys(own, 0), dict.fromkeys(own, 0)
        for reading in readings:
            start = begun[reading.rows[0]]
            most = len(reading.ids) - (reading.ends is not None)  # the last id of a row must be read to sample
            spared = min(most, *(max(held[row][:2]) - start for row in reading.rows))
            spared = spared if spared >= _WORTH else 0
            for row in reading.rows:
                mine, _, place = held[row]
                if mine < start + spared:
                    self._cache.copy(place, self._place[row], slice(start, start + spared))
                begun[row] += len(reading.ids)
            skipped = passed[reading.rows[0]] + spared
            left = reading.ids[spared:]
            passed |= dict.fromkeys(reading.rows, 0 if left else skipped)
            if left:
                kept.append(replace(reading, ids=left, skipped=skipped))
        return kept

    def _forward(self, readings: Sequence[_Reading]) -> torch.Tensor:
        """One pass; the logits [B, V] after each row that ends in it."""
        device, pieces = self._model.device, []
        for reading in readings:
            places = tuple(self._place[row] for row in reading.rows)
            pieces.append(Piece(places, self._cached[reading.rows[0]] + reading.skipped, len(reading.ids)))
            for row in reading.rows:
                self._cached[row] += reading.skipped + len(reading.ids)
        if self._graphs is not None and all(reading.rows == (reading.ends,) for reading in readings):
            rows, pasts = [piece.rows[0] for piece in pieces], [piece.past for piece in pieces]
            logits_BV = self._graphs.logits(rows, pasts, [reading.ids for reading in readings])
            if logits_BV is not None:
                return logits_BV
        current = self._pass(self._cache, pieces, device)
        last_P = np.cumsum([len(reading.ids) for reading in readings]) - 1
        ends_B = torch.from_numpy(last_P[[reading.ends is not None for reading in readings]]).to(device)
        ids_T = torch.tensor([index for reading in readings for index in reading.ids], device=device)
        return pass_logits(self._model, ids_T, current.positions_T, ends_B, current)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Ids to read into rows that hold the same so far; `ends` names the row whose last id is among them. `skipped`: how
    many ids before them are in the cache and not yet counted."""

    rows: tuple[int, ...]
    ids: list[int]
    ends: int | None
    skipped: int = 0


def _shared_at_start(prompts: Mapping[int, list[int]]) -> list[_Reading]:
    """Rows of nothing cached: what several share once, as a tree, parents first; then what each has to itself."""
    readings = []
    undivided = [(list(prompts), 0)] if prompts else []
    while undivided:
        rows, start = undivided.pop()
        if len(rows) == 1:
            readings.append(_Reading((rows[0],), prompts[rows[0]][start:], rows[0]))
            continue
        lowest, highest = min(prompts[row] for row in rows), max(prompts[row] for row in rows)
        # What these two share, all share. The last id of a row is never shared: it must be read to sample.
        same = min(shared_prefix(lowest, highest), min(len(prompts[row]) for row in rows) - 1)
        if (len(rows) - 1) * (same - start) >= _WORTH:
            readings.append(_Reading(tuple(rows), prompts[rows[0]][start:same], None))
            start = same
        parts: dict[int, list[int]] = {}
        for row in rows:
            parts.setdefault(prompts[row][same] if same + 1 < len(prompts[row]) else -1 - row, []).append(row)
        undivided += [(part, start) for part in reversed(parts.values())]
    return readings
