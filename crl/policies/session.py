"""Rows of one batch, sampled turn by turn (protocol `Session`).

What is appended waits until its row is next sampled. Rows need not be in the same turn, and a row that ends makes room
for a waiting one. Log-probabilities are those of teacher forcing up to rounding. Rows are read, and what was read is
kept, by `packed_rows` where a model's attention is plain, else by `own_rows` (:class:`Rows`).

Which rows share a pass follows from what was drawn, never from time. Suffixes of tensors: see `crl.policies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from crl.config import SamplingConfig
from crl.config.models import Sampling
from crl.errors import PromptTooLong
from crl.policies.own_rows import OwnRows
from crl.policies.packed_rows import PackedRows
from crl.policies.sampling import draw, draw_among
from crl.policies.turn import OwnPace, StopStrings, Turn
from crl.protocols import Answers, Sampled
from crl.text.prefixes import shared_prefix


class Rows(Protocol):
    """Rows with what was read of them. A row is named by its index."""

    def read(self, pending: Mapping[int, list[int]]) -> tuple[list[int], torch.Tensor]:
        """Read ids, at least one of each row, behind what the rows hold; rows that are not held yet are taken in.

        Returns the rows in the order of the logits, and the logits after each row's last token, [B, V].
        """
        ...

    def keep(self, row: int, count: int, token_ids: Sequence[int]) -> int:
        """Forget what a row holds behind its first `count` ids, or more where that is all that can be done; how many
        are left. `token_ids`: what the row is going to hold, which begins with them."""
        ...

    def drop(self, row: int) -> None:
        """Free a row, which may be held or not."""
        ...

    def clear(self) -> None:
        """Free everything."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        ...


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
        way: Sampling = "packed",
    ) -> None:
        """
        Args:
            model: a transformers causal language model in evaluation mode, with the attention that `way` needs.
            end_ids: ids that end a turn.
            context: longest row in tokens.
            prompts: ids of each row's prompt, at least one.
            seeds: seed of each row's random stream, from which one number is taken per token drawn.
            limit: most rows that hold keys and values at one time; others wait, in the order of the rows. None: all.
            stops: what finds stop strings (`ChatFormat.stops`).
            absent: ids that are no tokens and are never drawn.
            way: how rows are read.

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
                next_step="shorten the prompt (examples, experience), or raise method.roles.ROLE.context",
            )
        self._model, self._end_ids, self._context, self._stops = model, end_ids, context, stops
        self._absent = None if absent is None else absent.to(model.device)
        self._prompts = [list(prompt) for prompt in prompts]
        self._streams = [np.random.default_rng(seed) for seed in seeds]
        self._ids = {row: list(prompt) for row, prompt in enumerate(prompts)}
        self._limit = min(len(prompts), limit or len(prompts))
        self._rows: Rows = (
            PackedRows(model, self._prompts, self._limit, context) if way == "packed" else OwnRows(model, way)
        )
        self._held = set[int]()
        self._pending = {row: list(prompt) for row, prompt in enumerate(prompts)}  # tokens that are not, in order
        self._turns: dict[int, Turn] = {}
        self._sampling: dict[int, SamplingConfig] = {}

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        """Append ids that the model did not sample to the rows given. They are read when the row is next sampled."""
        for row, piece in pieces.items():
            self._pending[row].extend(piece)
            self._ids[row].extend(piece)

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        """Give a row whose turn is over other ids. What is held of the ids up to the first that differs stays."""
        if row in self._turns or not token_ids:
            raise ValueError("a row is replaced between two turns, and not by nothing")
        if seed is not None:
            self._streams[row] = np.random.default_rng(seed)
        # The last id must be read to sample behind it.
        same = min(shared_prefix(self._ids[row], token_ids), len(token_ids) - 1)
        held = len(self._ids[row]) - len(self._pending[row])
        kept = self._rows.keep(row, min(same, held), list(token_ids))
        self._ids[row], self._pending[row] = list(token_ids), list(token_ids[kept:])

    def begin(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> None:
        """Begin a turn in each row given; :meth:`advance` samples it.

        A turn ends with an id of `end_ids` (it belongs to the turn), with one that completes a stop string, or after
        `max_new_tokens` or where the context is full (`length`). One of the row's `answers` ends where the answer does.

        Args:
            rows: rows whose turn is not under way.
            sampling: temperature, cuts, max_new_tokens, stop_strings.
            answers: the answers a row may give; a row without any writes free text. Ids that leave no choice are not
                drawn and cost no pass.

        Raises:
            PromptTooLong: a row has no room for a token.
        """
        stop = self._stops(sampling.stop_strings)
        for row in rows:
            room = min(sampling.max_new_tokens, self._context - len(self._ids[row]))
            turn = Turn(room, (answers or {}).get(row), stop)
            if turn.room < 1:
                raise PromptTooLong(
                    f"Row {row} has {len(self._ids[row])} tokens and no room to answer.",
                    expected=f"fewer than {self._context}, the context of the role",
                    where="a running session",
                    next_step="end such episodes before they are sampled, or raise method.roles.ROLE.context",
                )
            self.extend({row: turn.follow()})
            self._turns[row], self._sampling[row] = turn, sampling

    def advance(self) -> dict[int, Sampled]:
        """Sample on until a turn ends: the turns that have, by row. Empty where none is under way, or where those that
        are wait for rows that hold the batch's places and have no turn."""
        while not (ended := self.ended()) and self.step():
            pass
        return ended

    def ended(self) -> dict[int, Sampled]:
        """The turns that are over, by row; no more is said of them."""
        rows = [row for row, turn in sorted(self._turns.items()) if turn.stop_reason is not None]
        return {row: self._turns.pop(row).sampled() for row in rows}

    @torch.inference_mode()
    def step(self) -> bool:
        """Draw the next id of every turn whose row is in the batch; whether there is one."""
        self._admit()
        active = [row for row in sorted(self._turns) if row in self._held]
        if active:
            self._draw(*self._read(active))
        return bool(active)

    def written(self, row: int) -> list[int]:
        """What was drawn of a turn that is under way, so far."""
        return self._turns[row].token_ids

    def give_up(self, row: int) -> None:
        """End a turn that nobody waits for any more: its row keeps what was drawn, and may be replaced."""
        self._turns.pop(row, None)

    def drop(self, rows: Sequence[int]) -> None:
        """Free rows that are finished; they may not be used again."""
        for row in rows:
            self._held.discard(row)
            self._rows.drop(row)
            del self._ids[row], self._pending[row]
        if not self._ids:
            self._rows.clear()

    def close(self) -> None:
        """Free all rows."""
        self.drop(list(self._ids))

    def length(self, row: int) -> int:
        """Tokens of a row so far."""
        return len(self._ids[row])

    @property
    def cache_bytes(self) -> int:
        """Bytes of what the rows hold, or have room for; on a CPU what is never written takes no memory."""
        return self._rows.nbytes

    def _admit(self) -> None:
        """Give rows that wait a place in the batch, in their order."""
        for row in sorted(self._turns):
            if len(self._held) == self._limit:
                return
            self._held.add(row)

    def _read(self, rows: Sequence[int]) -> tuple[list[int], torch.Tensor]:
        """Read all that the rows have pending: the rows in the order of the logits, and logits [B, V] after each."""
        pending = {row: self._pending[row] for row in rows}
        self._pending |= {row: [] for row in rows}
        return self._rows.read(pending)

    def _draw(self, rows: Sequence[int], logits_BV: torch.Tensor) -> None:
        """Draw the next id of each row; rows with the same settings together."""
        alike: dict[tuple[bool, float, int, float, float], list[int]] = {}
        for place, row in enumerate(rows):
            sampling = self._sampling[row]
            cut = (sampling.top_k, sampling.top_p, sampling.min_p)
            alike.setdefault((self._turns[row].constrained, sampling.temperature, *cut), []).append(place)
        for (constrained, *_), places in alike.items():
            chosen, sampling = [rows[place] for place in places], self._sampling[rows[places[0]]]
            own_BV = logits_BV if len(places) == len(rows) else logits_BV[places]
            uniforms_B = torch.tensor([self._streams[row].random() for row in chosen], dtype=torch.float64)
            uniforms_B = uniforms_B.to(logits_BV.device)
            if constrained:
                options = [self._turns[row].options for row in chosen]
                drawn_B, logprobs_B = draw_among(own_BV, options, uniforms_B, sampling)
            else:
                drawn_B, logprobs_B = draw(own_BV, uniforms_B, sampling, self._absent)
            for row, index, logprob in zip(chosen, drawn_B.tolist(), logprobs_B.tolist(), strict=True):
                self.extend({row: self._turns[row].draw(index, logprob, self._end_ids)})
