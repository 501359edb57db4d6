"""Rows of one batch with their keys and values, sampled turn by turn (protocol `Session`).

Every token is read once: what rows share at their start is read once for all that come into the batch together, and a
row that comes later takes over what it shares with those that are there, or were last. What is appended waits until its
row is next sampled. A forward pass holds whatever each row under way has to read, without padding
(`crl/policies/cache.py`): one row may read an observation while another reads the one token it drew. So rows need not
be in the same turn, and a row that ends makes room for a waiting one. Log-probabilities are those of teacher forcing up
to rounding.

Which rows share a pass follows from what was drawn, never from time. Suffixes of tensors: see `crl.policies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from crl.config import SamplingConfig
from crl.errors import PromptTooLong
from crl.policies.cache import Pass, Piece, RowCache, pass_logits
from crl.policies.machine import PASS_TOKENS
from crl.policies.pass_graph import PaddedPass, PassGraphs
from crl.policies.sampling import draw, draw_among
from crl.policies.turn import OwnPace, StopStrings, Turn
from crl.protocols import Answers, Sampled

_WORTH = 16
"""Tokens that reading once must spare, over all rows that share; each piece costs some calls of its own."""


class BatchSession(OwnPace):
    """One batch of rows. Rows are named by their index at opening."""

    def __init__(
        self,
        model: Any,
        end_ids: frozenset[int],
        context: int,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        limit: int | None = None,
        *,
        stops: Callable[[Sequence[str]], StopStrings],
        absent: torch.Tensor | None = None,
    ) -> None:
        """
        Args:
            model: a transformers causal language model in evaluation mode, with the attention of `cache`.
            end_ids: ids that end a turn.
            context: longest row in tokens.
            prompts: ids of each row's prompt, at least one.
            seeds: seed of each row's random stream, from which one number is taken per token drawn.
            limit: most rows that hold keys and values at one time; others wait, in the order of the rows. None: all.
            stops: what finds stop strings (`ChatFormat.stops`).
            absent: ids that are no tokens and are never drawn.

        Raises:
            PromptTooLong: a prompt leaves no room for a token.
        """
        if len(prompts) != len(seeds) or not prompts or not all(prompts):
            raise ValueError("a session needs at least one prompt, no empty one, and one seed per prompt")
        longest = max(range(len(prompts)), key=lambda row: len(prompts[row]))
        if len(prompts[longest]) >= context:
            raise PromptTooLong(
                f"A prompt has {len(prompts[longest])} tokens.",
                expected=f"fewer than {context}, the context of the role",
                where=f"row {longest} of the batch",
                next_step="Shorten the prompt (examples, experience) or raise the role's context.",
            )
        self._model, self._end_ids, self._context, self._stops = model, end_ids, context, stops
        self._absent = None if absent is None else absent.to(model.device)
        self._prompts = [list(prompt) for prompt in prompts]
        self._streams = [np.random.default_rng(seed) for seed in seeds]
        self._lengths = {row: len(prompt) for row, prompt in enumerate(prompts)}
        layers, rows = model.config.get_text_config().num_hidden_layers, min(len(prompts), limit or len(prompts))
        on_gpu = model.device.type == "cuda"
        self._cache = RowCache(layers, rows, context)
        self._graphs = PassGraphs(model, self._cache) if on_gpu else None
        self._pass: type[Pass | PaddedPass] = PaddedPass if on_gpu else Pass
        self._free = list(range(self._cache.rows))
        self._place: dict[int, int] = {}  # cache row of each row that is in the batch
        self._left: dict[int, list[int]] = {}  # what free cache rows still hold: the start of the row that left
        self._cached = dict.fromkeys(self._lengths, 0)  # tokens of each row that are in the cache
        self._pending = {row: list(prompt) for row, prompt in enumerate(prompts)}  # tokens that are not, in order
        self._turns: dict[int, Turn] = {}
        self._sampling = SamplingConfig()
        self._stop = stops(self._sampling.stop_strings)

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        """Append ids that the model did not sample to the rows given. They are read when the row is next sampled."""
        for row, piece in pieces.items():
            self._pending[row].extend(piece)
            self._lengths[row] += len(piece)

    def begin(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> None:
        """Begin a turn in each row given; :meth:`advance` samples it.

        A turn ends with an id of `end_ids` (it belongs to the turn), with one that completes a stop string, or after
        `max_new_tokens` or where the context is full (`length`). With `answers` it ends where the answer does.

        Args:
            rows: rows whose turn is not under way.
            sampling: temperature, top_k, top_p, max_new_tokens, stop_strings.
            answers: the answers each row may give. Ids that leave no choice are not drawn and cost no pass.

        Raises:
            PromptTooLong: a row has no room for a token.
        """
        if self._turns and sampling != self._sampling:
            raise ValueError("turns that are under way at one time share their sampling settings")
        if sampling != self._sampling:
            self._sampling, self._stop = sampling, self._stops(sampling.stop_strings)
        for row in rows:
            room = min(sampling.max_new_tokens, self._context - self._lengths[row])
            turn = Turn(room, answers and answers[row], self._stop)
            if turn.room < 1:
                raise PromptTooLong(
                    f"Row {row} has {self._lengths[row]} tokens and no room to answer.",
                    expected=f"fewer than {self._context}, the context of the role",
                    where="a running session",
                    next_step="End such episodes before they are sampled, or raise the role's context.",
                )
            self.extend({row: turn.follow()})
            self._turns[row] = turn

    @torch.inference_mode()
    def advance(self) -> dict[int, Sampled]:
        """Sample on until a turn ends: the turns that have, by row. Empty where none is under way, or where those that
        are wait for rows that hold the batch's places and have no turn."""
        while self._turns:
            ended = [row for row, turn in sorted(self._turns.items()) if turn.stop_reason is not None]
            if ended:
                return {row: self._turns.pop(row).sampled() for row in ended}
            self._admit()
            active = [row for row in sorted(self._turns) if row in self._place]
            if not active:
                break
            self._draw(*self._read(active))
        return {}

    def drop(self, rows: Sequence[int]) -> None:
        """Free rows that are finished; they may not be used again."""
        for row in rows:
            if row in self._place:
                place = self._place.pop(row)
                self._free.append(place)
                self._left[place] = self._prompts[row][: self._cached[row]]
            del self._lengths[row], self._pending[row], self._cached[row]
        if not self._lengths:
            self._cache.clear()
            if self._graphs is not None:
                self._graphs.clear()

    def close(self) -> None:
        """Free all rows."""
        self.drop(list(self._lengths))

    def length(self, row: int) -> int:
        """Tokens of a row so far."""
        return self._lengths[row]

    @property
    def cache_bytes(self) -> int:
        """Bytes that keys and values have room for; on a CPU what is never written takes no memory."""
        return self._cache.nbytes

    def _admit(self) -> None:
        """Give rows that wait a place in the batch, in their order."""
        self._free.sort(reverse=True)
        for row in sorted(self._turns):
            if not self._free:
                return
            if row not in self._place:
                self._place[row] = self._free.pop()

    def _read(self, rows: Sequence[int]) -> tuple[list[int], torch.Tensor]:
        """Read all that the rows have pending.

        Returns:
            The rows in the order of the logits, and the logits after each row's last token, [B, V].
        """
        waiting = [
            *self._taken_over(_shared_at_start({row: self._pending[row] for row in rows if not self._cached[row]})),
            *(_Reading((row,), self._pending[row], row) for row in rows if self._cached[row]),
        ]
        self._pending |= {row: [] for row in rows}
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

    def _taken_over(self, readings: Sequence[_Reading]) -> list[_Reading]:
        """Readings without what the cache holds: left in a row's own place, or copied from another one's."""
        if not readings:
            return []
        there = {place: self._prompts[row][: self._cached[row]] for row, place in self._place.items()}
        coming = dict.fromkeys(row for reading in readings for row in reading.rows)
        own = {row: self._left.pop(self._place[row], []) for row in coming}
        others = {place: ids for place, ids in (there | self._left).items() if ids}
        if not others and not any(own.values()):
            return list(readings)
        # Most tokens of a row that are held: in its place, in another, and in which.
        held: dict[int, tuple[int, int, int]] = {}
        for row in own:
            ids = self._pending[row]
            length, place = max(((_same(ids, other), place) for place, other in others.items()), default=(0, -1))
            held[row] = _same(ids, own[row]), length, place
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

    def _draw(self, rows: Sequence[int], logits_BV: torch.Tensor) -> None:
        """Draw the next id of each row."""
        for constrained in (False, True):
            places = [place for place, row in enumerate(rows) if self._turns[row].constrained is constrained]
            if not places:
                continue
            chosen = [rows[place] for place in places]
            own_BV = logits_BV if len(places) == len(rows) else logits_BV[places]
            uniforms_B = torch.tensor([self._streams[row].random() for row in chosen], dtype=torch.float64)
            uniforms_B = uniforms_B.to(logits_BV.device)
            if constrained:
                options = [self._turns[row].options for row in chosen]
                drawn_B, logprobs_B = draw_among(own_BV, options, uniforms_B, self._sampling)
            else:
                drawn_B, logprobs_B = draw(own_BV, uniforms_B, self._sampling, self._absent)
            for row, index, logprob in zip(chosen, drawn_B.tolist(), logprobs_B.tolist(), strict=True):
                self.extend({row: self._turns[row].draw(index, logprob, self._end_ids)})


@dataclass(frozen=True, slots=True)
class _Reading:
    """Ids to read into rows that hold the same so far; `ends` names the row whose last id is among them. `skipped`: how
    many ids before them are in the cache and not yet counted."""

    rows: tuple[int, ...]
    ids: list[int]
    ends: int | None
    skipped: int = 0


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


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
        same = min(_same(lowest, highest), min(len(prompts[row]) for row in rows) - 1)
        if (len(rows) - 1) * (same - start) >= _WORTH:
            readings.append(_Reading(tuple(rows), prompts[rows[0]][start:same], None))
            start = same
        parts: dict[int, list[int]] = {}
        for row in rows:
            parts.setdefault(prompts[row][same] if same + 1 < len(prompts[row]) else -1 - row, []).append(row)
        undivided += [(part, start) for part in reversed(parts.values())]
    return readings
