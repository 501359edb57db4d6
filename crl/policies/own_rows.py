"""Rows whose state the model keeps in transformers' own cache, for whatever attention or recurrence it has.

The probe says which way is exact (`crl.config.models.Sampling`). `padded`: rows share passes. A **group** is some rows
in one cache. Its rows end in the same slot and are padded on the left, so that no padding is inside of a row and a
window of so many slots is one of so many tokens. New ids are padded on the right, where causal attention never looks;
then rows are shifted to end in one slot again. A recurrent state knows no padding: with one, rows share a pass only
where they have equally many new ids. `rows`: each row has a cache of its own. `tokens`: the same, one id a pass.
`reread`: nothing is kept, and a row is read whole for each token.

Suffixes of tensors: see `crl.policies`; here N is the most new ids of a row, C slots of a cache.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation.utils import ALL_CACHE_NAMES

from crl.config.models import Sampling, logits_at
from crl.errors import StageFailed
from crl.policies.machine import PASS_TOKENS

_TOKEN_AXES = {"keys": 2, "values": 2, "indexer_keys": 1}
"""Which axis counts tokens, of the tensors that layers of a cache keep under these names. What is in a dictionary is a
state, which has none."""


class OwnRows:
    """See the module (protocol `crl.policies.session.Rows`)."""

    def __init__(self, model: Any, way: Sampling) -> None:
        """`model`: a transformers causal language model in evaluation mode, with its own attention."""
        self._model, self._way = model, way
        self._takes = inspect.signature(model.forward).parameters
        self._ids: dict[int, list[int]] = {}
        self._states: dict[int, tuple[dict[str, Any], int]] = {}  # cache by the name of its argument; tokens in it
        self._groups: dict[int, _Group] = {}

    def read(self, pending: Mapping[int, list[int]]) -> tuple[list[int], torch.Tensor]:
        """See the protocol."""
        if self._way != "padded":
            alone = self._read_whole if self._way == "reread" else self._read_alone
            return list(pending), torch.cat([alone(row, ids) for row, ids in pending.items()])
        order: list[int] = []
        logits = []
        for part in self._parts(pending):
            rows, logits_BV = self._read_together(part)
            order += rows
            logits.append(logits_BV)
        return order, torch.cat(logits)

    def keep(self, row: int, count: int, token_ids: Sequence[int]) -> int:
        """See the protocol. A state that was carried on, or a window, cannot be taken back: then nothing is left."""
        if self._way == "reread":
            self._ids[row] = self._ids.get(row, [])[:count]
            return count
        group, (state, past) = self._groups.get(row), self._states.get(row, ({}, 0))
        cut = count > 0 and (not self._recurrent if group is not None else _can_be_cut(state))
        if not cut:
            self.drop(row)
            return 0
        if group is not None:
            slots, place = max(group.lengths), group.rows.index(row)
            ends = [slots] * len(group.rows)
            ends[place] += count - group.lengths[place]
            group.lengths[place] = count
            group.shift(slots, ends)
        else:
            for cache in state.values():
                cache.crop(count - past)
            self._states[row] = state, count
        return count

    def drop(self, row: int) -> None:
        """See the protocol."""
        self._ids.pop(row, None)
        self._states.pop(row, None)
        if (group := self._groups.pop(row, None)) is not None:
            group.rows[group.rows.index(row)] = None

    def clear(self) -> None:
        """See the protocol."""
        self._ids, self._states, self._groups = {}, {}, {}

    @property
    def nbytes(self) -> int:
        """See the protocol."""
        caches = [state for state, _ in self._states.values()] + [group.cache for group in self._groups.values()]
        return sum({each.data_ptr(): each.nbytes for cache in caches for each in _tensors(cache)}.values())

    def _read_whole(self, row: int, ids: Sequence[int]) -> torch.Tensor:
        """Logits [1, V] behind all ids of a row."""
        own = self._ids.setdefault(row, [])
        own += ids
        return self._logits(torch.tensor([own]), [len(own) - 1], use_cache=False)[0]

    def _read_alone(self, row: int, ids: Sequence[int]) -> torch.Tensor:
        """Logits [1, V] behind new ids of a row, whose cache takes them in."""
        most = 1 if self._way == "tokens" else PASS_TOKENS
        for start in range(0, len(ids), most):
            chunk = ids[start : start + most]
            state, past = self._states.get(row, ({}, 0))
            positions = torch.arange(past, past + len(chunk))[None]
            inputs = {**state, **self._taken(position_ids=positions), "use_cache": True}
            logits_BV, output = self._logits(torch.tensor([chunk]), [len(chunk) - 1], **inputs)
            found = next(((name, output[name]) for name in ALL_CACHE_NAMES if output.get(name) is not None), None)
            if found is None or found[0] not in self._takes:
                raise StageFailed("the model keeps no state between passes", expected="a cache that it takes back")
            self._states[row] = dict([found]), past + len(chunk)
        return logits_BV

    def _parts(self, pending: Mapping[int, list[int]]) -> Iterator[dict[int, list[int]]]:
        """Rows that share a pass: those of one id, then longer ones of about as many each, new rows apart."""

        def size(row: int) -> tuple[bool, int]:
            return row not in self._groups, len(pending[row])

        single = {row: ids for row, ids in pending.items() if size(row) == (False, 1)}
        if single:
            yield single
        longer = sorted((row for row in pending if row not in single), key=size)
        for _, same in groupby(longer, key=size if self._recurrent else lambda row: row not in self._groups):
            part: dict[int, list[int]] = {}
            for row in same:
                whole = len(pending[row]) * (len(part) + 1)
                padding = whole - sum(map(len, part.values())) - len(pending[row])
                if part and (whole > PASS_TOKENS or 2 * padding > whole):
                    yield part
                    part = {}
                part[row] = pending[row]
            yield part

    @property
    def _recurrent(self) -> bool:
        """Whether a layer keeps more than what it was told of each token."""
        cache = next(iter(self._groups.values())).cache if self._groups else _new_cache(self._model)
        return any(isinstance(value, dict) for layer in cache.layers for value in vars(layer).values())

    def _read_together(self, part: Mapping[int, list[int]]) -> tuple[list[int], torch.Tensor]:
        """Rows, and the logits [B, V] behind each one's new ids. All are held, or none is; of those that are new and
        equal one is read."""
        if next(iter(part)) in self._groups:
            group = self._joined(part)
            return list(group.held), self._advance(group, [part[row] for row in group.held])
        first: dict[tuple[int, ...], int] = {}
        for ids in part.values():
            first.setdefault(tuple(ids), len(first))
        group = _Group(list(range(len(first))), [0] * len(first), _new_cache(self._model))
        logits_BV = self._advance(group, list(map(list, first)))
        copied = [first[tuple(ids)] for ids in part.values()]
        if len(first) < len(part):
            group = group.chosen(copied)
            logits_BV = logits_BV[copied]
        group.rows = list(part)
        self._groups |= dict.fromkeys(part, group)
        return list(part), logits_BV

    def _joined(self, rows: Mapping[int, Any]) -> _Group:
        """One group of these rows and no other."""
        taken = []
        for group in {id(group): group for group in map(self._groups.__getitem__, rows)}.values():
            wanted = [place for place, row in enumerate(group.rows) if row in rows]
            others = [place for place, row in enumerate(group.rows) if row is not None and row not in rows]
            taken.append(group if len(wanted) == len(group.rows) else group.chosen(wanted))
            if others:
                rest = group.chosen(others)
                self._groups |= dict.fromkeys(rest.held, rest)
        joined = taken[0] if len(taken) == 1 else _together(taken)
        self._groups |= dict.fromkeys(joined.held, joined)
        return joined

    def _advance(self, group: _Group, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read ids of each row of a group; the logits [B, V] behind them."""
        most = max(map(len, ids))
        for start in range(0, most, PASS_TOKENS):  # more than one of a single row only
            chunk = [each[start : start + PASS_TOKENS] for each in ids] if most > PASS_TOKENS else ids
            logits_BV = self._pass(group, chunk)
        return logits_BV

    def _pass(self, group: _Group, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        counts, past = list(map(len, ids)), max(group.lengths)
        width = max(counts)
        ids_BN = torch.tensor([[*each, *[each[-1]] * (width - len(each))] for each in ids])
        lengths_B1 = torch.tensor(group.lengths)[:, None]
        inputs = {_cache_name(self._takes): group.cache, "use_cache": True}
        inputs |= self._taken(position_ids=lengths_B1 + torch.arange(width))
        if min(group.lengths) < past:
            inputs |= self._taken(attention_mask=(torch.arange(past + width) >= past - lengths_B1).long())
        ends = [row * width + count - 1 for row, count in enumerate(counts)]
        logits_BV, _ = self._logits(ids_BN, ends, **inputs)
        group.lengths = [length + count for length, count in zip(group.lengths, counts, strict=True)]
        if min(counts) < width:
            group.shift(past + width, [past + count for count in counts])
        return logits_BV

    def _taken(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Those of the inputs that the model has a name for."""
        return {name: each.to(self._model.device) for name, each in inputs.items() if name in self._takes}

    def _logits(self, ids_BN: torch.Tensor, ends: Sequence[int], **inputs: Any) -> tuple[torch.Tensor, Any]:
        ends_B = torch.tensor(ends, device=self._model.device)
        return logits_at(self._model, ends_B, input_ids=ids_BN.to(self._model.device), **inputs)


@dataclass
class _Group:
    """Rows in one cache, whose slots are as many as the longest has tokens."""

    rows: list[int | None]
    """None: a row that was dropped."""
    lengths: list[int]
    cache: Any

    @property
    def held(self) -> list[int]:
        """The rows that were not dropped."""
        return [row for row in self.rows if row is not None]

    def chosen(self, indexes: Sequence[int]) -> _Group:
        """A group of copies of some of the rows."""
        lengths = [self.lengths[index] for index in indexes]
        unseen, cache = max(self.lengths) - max(lengths), _copied(self.cache)
        for holder, name, axis in _kept(cache):
            kept = holder[name].index_select(0, torch.tensor(indexes, device=holder[name].device))
            holder[name] = kept if axis is None else kept.narrow(axis, unseen, kept.shape[axis] - unseen).contiguous()
        return _Group([self.rows[index] for index in indexes], lengths, cache)

    def shift(self, slots: int, ends: Sequence[int]) -> None:
        """Have each row, which ends before slot `ends` of so many, end behind the last of as many as are needed."""
        needed = max(self.lengths)
        source_BC = torch.arange(needed)[None] - needed + torch.tensor(ends)[:, None]
        for holder, name, axis in _kept(self.cache):
            if axis is None:
                continue
            states = holder[name]
            shape = [len(ends), *[1] * (states.dim() - 1)]
            shape[axis] = needed
            index = source_BC.clamp(min=0).to(states.device).view(shape)
            holder[name] = states.gather(axis, index.expand(*states.shape[:axis], needed, *states.shape[axis + 1 :]))


def _together(groups: Sequence[_Group]) -> _Group:
    """One group of all rows of some."""
    slots = max(max(group.lengths) for group in groups)
    joined = copy.copy(groups[0])
    joined.rows = [row for group in groups for row in group.rows]
    joined.lengths = [length for group in groups for length in group.lengths]
    for same in zip(*(_kept(group.cache) for group in groups), strict=True):
        parts = []
        for (holder, name, axis), group in zip(same, groups, strict=True):
            missing = 0 if axis is None else slots - max(group.lengths)
            after = holder[name].dim() - 1 - (axis or 0)
            parts.append(
                torch.nn.functional.pad(holder[name], [0, 0] * after + [missing, 0]) if missing else holder[name]
            )
        holder, name, _ = same[0]
        holder[name] = torch.cat(parts)
    return joined


def _can_be_cut(state: Mapping[str, Any]) -> bool:
    """Whether a row's caches keep the keys and values of every token, and nothing else."""
    return bool(state) and all(
        isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
        for cache in state.values()
    )


def _new_cache(model: Any) -> DynamicCache:
    """An empty cache, in which layers with a window keep all: rows of a group see theirs in other slots."""
    cache = DynamicCache(config=model.config)
    cache.layers = [DynamicLayer() if type(each) is DynamicSlidingWindowLayer else each for each in cache.layers]
    if any(getattr(each, "is_sliding", False) for each in cache.layers):
        raise StageFailed("a layer keeps a state and a window", expected="rows of one cache that can be shifted")
    return cache


def _cache_name(takes: Mapping[str, Any]) -> str:
    name = next((name for name in ("past_key_values", "cache_params") if name in takes), None)
    if name is None:
        raise StageFailed("the model takes no cache", expected="past_key_values or cache_params")
    return name


def _copied(cache: Any) -> Any:
    """A cache with layers and states of its own, and the same tensors."""
    found = copy.copy(cache)
    found.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in found.layers:
        vars(layer).update({name: dict(each) for name, each in vars(layer).items() if isinstance(each, dict)})
    return found


def _kept(cache: Any) -> list[tuple[MutableMapping[Any, Any], Any, int | None]]:
    """The tensors of a cache, one of each kind for each of its layers: what holds it, its name there, and which of its
    axes counts tokens."""
    found: list[tuple[MutableMapping[Any, Any], Any, int | None]] = []
    for layer in cache.layers:
        for name, each in vars(layer).items():
            if isinstance(each, dict):
                found += [(each, key, None) for key, state in each.items() if isinstance(state, torch.Tensor)]
            elif isinstance(each, torch.Tensor) and each.dim() and each.numel():
                if name not in _TOKEN_AXES:
                    raise StageFailed(f"a cache keeps {name}", expected=f"no more than {', '.join(_TOKEN_AXES)}")
                found.append((vars(layer), name, _TOKEN_AXES[name]))
    return found


def _tensors(each: Any) -> Iterator[torch.Tensor]:
    """All tensors inside of an object."""
    if isinstance(each, torch.Tensor):
        yield each
    elif isinstance(each, Mapping):
        for value in each.values():
            yield from _tensors(value)
    elif isinstance(each, list | tuple):
        for value in each:
            yield from _tensors(value)
    elif type(each).__module__.startswith("transformers.") and hasattr(each, "__dict__"):
        yield from _tensors(vars(each))
