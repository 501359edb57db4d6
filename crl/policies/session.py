"""Rows of one batch with their key-value cache, sampled turn by turn (protocol `Session`).

Every token is read once: what all prompts share is read as one row, what a group shares as one row per group, the rest
row by row. Ids that are appended (and the last id sampled) wait until the row is next sampled and are read in that
first forward pass. Rows have no padding in the cache (`crl/policies/cache.py`), so positions are plain counts and the
log-probabilities are those of teacher forcing up to rounding.

A ragged pass is padded on the left. Padding sees slots of its own row only and writes to a slot nobody sees.

Shapes: B rows of a pass, Q new tokens, S slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from crl.config import SamplingConfig
from crl.errors import PromptTooLong
from crl.policies.cache import RowCache
from crl.policies.sampling import draw, draw_among
from crl.policies.turn import Turn
from crl.protocols import Answers, Sampled

_PADDING = {"cpu": 64, "cuda": 4096}
"""Padding tokens that cost about as much as another forward pass: more padding than this splits the pass."""
_WIDTH = 512
"""Most new tokens of a row in one pass: bounds the memory of mask and activations."""
_TOKENS = 16_384
"""Most tokens of one pass, padding included."""
_BUSY = 0.75
"""Rows that have ended ride along (ignored) while at least this share of the pass is busy; moving rows costs too."""


class BatchSession:
    """One batch of rows. Rows are named by their index at opening."""

    def __init__(
        self,
        model: Any,
        end_ids: frozenset[int],
        context: int,
        prompts: Sequence[Sequence[int]],
        groups: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        """
        Args:
            model: a transformers causal language model in evaluation mode.
            end_ids: ids that end a turn.
            context: longest row in tokens.
            prompts: ids of each row's prompt, at least one.
            groups: group of each row; rows of one group usually share most of their prompt.
            seeds: seed of each row's random stream, from which one number is taken per token drawn.

        Raises:
            PromptTooLong: a prompt leaves no room for a token.
        """
        if not len(prompts) == len(groups) == len(seeds) or not prompts or not all(prompts):
            raise ValueError("a session needs at least one prompt, no empty one, and one group and seed per prompt")
        longest = max(range(len(prompts)), key=lambda row: len(prompts[row]))
        if len(prompts[longest]) >= context:
            raise PromptTooLong(
                f"A prompt has {len(prompts[longest])} tokens.",
                expected=f"fewer than {context}, the context of the role",
                where=f"row {longest} of the batch",
                next_step="Shorten the prompt (examples, experience) or raise the role's context.",
            )
        self._model, self._end_ids, self._context = model, end_ids, context
        self._streams = [np.random.default_rng(seed) for seed in seeds]
        self._device = model.device
        self._padding = _PADDING.get(self._device.type, _PADDING["cpu"])
        self._hidden = torch.tensor(float("-inf"), dtype=model.dtype, device=self._device)
        self._cached: dict[int, int] = {}  # tokens of each row that are in the cache
        self._pending: dict[int, list[int]] = {}  # tokens that are not, in order
        self._order: list[int] = []  # row of each cache row
        self._cache = RowCache(model.config.get_text_config().num_hidden_layers, rows=1)
        self._open([list(prompt) for prompt in prompts], list(groups))

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        """Append ids that the model did not sample to the rows given. They are read when the row is next sampled."""
        for row, piece in pieces.items():
            self._pending[row].extend(piece)

    @torch.inference_mode()
    def sample(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> dict[int, Sampled]:
        """Sample one turn in each row given.

        A turn ends with an id of `end_ids` (it belongs to the turn), or after `max_new_tokens` or where the context is
        full (`length`). With `answers` it ends where the answer does.

        Args:
            rows: rows to sample, none twice.
            sampling: temperature, top_k, top_p, max_new_tokens.
            answers: the answers each row may give. Ids that leave no choice are not drawn and cost no pass.

        Raises:
            PromptTooLong: a row has no room for a token.
        """
        turns = {
            row: Turn(min(sampling.max_new_tokens, self._context - self.length(row)), answers and answers[row])
            for row in rows
        }
        for row, turn in turns.items():
            if turn.room < 1:
                raise PromptTooLong(
                    f"Row {row} has {self.length(row)} tokens and no room to answer.",
                    expected=f"fewer than {self._context}, the context of the role",
                    where="a running session",
                    next_step="End such episodes before they are sampled, or raise the role's context.",
                )
            self._pending[row] += turn.follow()
        active = [row for row in rows if turns[row].stop_reason is None]
        while active:
            active, logits_BV = self._read({row: self._pending[row] for row in active})
            uniforms_B = torch.tensor([self._streams[row].random() for row in active], dtype=torch.float64)
            uniforms_B = uniforms_B.to(self._device)
            if answers is None:
                drawn_B, logprobs_B = draw(logits_BV, uniforms_B, sampling)
            else:
                drawn_B, logprobs_B = draw_among(
                    logits_BV, [turns[row].options for row in active], uniforms_B, sampling
                )
            for row, index, logprob in zip(active, drawn_B.tolist(), logprobs_B.tolist(), strict=True):
                self._pending[row] = turns[row].draw(index, logprob, self._end_ids)
            active = [row for row in active if turns[row].stop_reason is None]
        return {row: turns[row].sampled() for row in rows}

    @torch.inference_mode()
    def drop(self, rows: Sequence[int]) -> None:
        """Free rows that are finished; they may not be used again."""
        for row in rows:
            del self._cached[row], self._pending[row]
        kept = [index for index, row in enumerate(self._order) if row in self._cached]
        self._cache.select(kept)
        self._order = [self._order[index] for index in kept]

    def length(self, row: int) -> int:
        """Tokens of a row so far."""
        return self._cached[row] + len(self._pending[row])

    @property
    def cache_bytes(self) -> int:
        """Bytes the key-value cache holds."""
        return self._cache.nbytes

    @torch.inference_mode()
    def _open(self, prompts: list[list[int]], groups: list[int]) -> None:
        """Read what all rows share, then what each group shares; the rest stays pending."""
        names = list(dict.fromkeys(groups))
        members = {name: [row for row, group in enumerate(groups) if group == name] for name in names}
        shared = _shared(prompts)
        if shared:
            self._order, self._cached, self._pending = [0], {0: 0}, {0: prompts[0][:shared]}
            self._read(dict(self._pending))
        # Until the rows are laid out, row numbers are positions in `names`: one row per group.
        self._place([0] * len(names), range(len(names)), shared)
        group_shared = {}
        for position, name in enumerate(names):
            group_shared[name] = max(shared, _shared([prompts[row] for row in members[name]]))
            self._pending[position] = prompts[members[name][0]][shared : group_shared[name]]
        pieces = {position: piece for position, piece in self._pending.items() if piece}
        if pieces:
            self._read(pieces)
        positions = {name: self._order.index(position) for position, name in enumerate(names)}
        self._place([positions[group] for group in groups], range(len(prompts)), 0)
        for row, group in enumerate(groups):
            self._cached[row] = group_shared[group]
            self._pending[row] = prompts[row][group_shared[group] :]

    def _place(self, sources: list[int], rows: range, cached: int) -> None:
        """Rearrange the cache: one cache row per row, copied from `sources`."""
        self._cache.select(sources)
        self._order = list(rows)
        self._cached = dict.fromkeys(rows, cached)
        self._pending = {row: [] for row in rows}

    def _read(self, pieces: Mapping[int, list[int]]) -> tuple[list[int], torch.Tensor]:
        """Read each row's piece (no empty one) into the cache.

        Returns:
            The rows in the order of the logits, and the logits after each row's last token, [B, V].
        """
        for row in pieces:
            self._pending[row] = []
        bands = self._bands(pieces)
        order: list[int] = []
        logits = []
        for start, stop in bands:
            rows = self._order[start:stop]
            parts = {row: list(pieces.get(row, [])) for row in rows}
            # The last pass of a band holds every row's last token.
            while max(map(len, parts.values())) > _WIDTH:
                head = {row: part[: max(0, min(_WIDTH, len(part) - _WIDTH))] for row, part in parts.items()}
                self._forward(range(start, stop), [head[row] for row in rows])
                parts = {row: part[len(head[row]) :] for row, part in parts.items()}
            logits_BV = self._forward(range(start, stop), [parts[row] for row in rows])
            wanted = [index for index, row in enumerate(rows) if row in pieces]
            order += [rows[index] for index in wanted]
            logits.append(logits_BV if len(wanted) == len(rows) else logits_BV[wanted])
        return order, logits[0] if len(logits) == 1 else torch.cat(logits)

    def _bands(self, pieces: Mapping[int, list[int]]) -> list[tuple[int, int]]:
        """Cut the cache rows into consecutive ranges that are read together, moving rows where that pays."""
        reach = 1 + max(index for index, row in enumerate(self._order) if row in pieces)
        rows = self._order[:reach]
        lengths = [len(pieces.get(row, ())) for row in rows]
        width = max(lengths)
        padding = width * reach - sum(lengths)
        fits = len(pieces) >= _BUSY * reach if width == 1 else padding <= self._padding
        if fits and width * reach <= _TOKENS:
            return [(0, reach)]
        # Longest first (stable), the rows that are not read last; then cut where padding would cost a pass.
        by_length = sorted(pieces, key=lambda row: (-len(pieces[row]), row))
        self._arrange(by_length + [row for row in self._order if row not in pieces])
        bands = []
        start = padding = 0
        for index, row in enumerate(by_length):
            widest = len(pieces[by_length[start]])
            padding += widest - len(pieces[row])
            if index > start and (padding > self._padding or min(widest, _WIDTH) * (index + 1 - start) > _TOKENS):
                bands.append((start, index))
                start, padding = index, 0
        return [*bands, (start, len(by_length))]

    def _arrange(self, order: list[int]) -> None:
        places = {row: index for index, row in enumerate(self._order)}
        self._cache.select([places[row] for row in order])
        self._order = order

    def _forward(self, places: range, pieces: list[list[int]]) -> torch.Tensor:
        """One forward pass over consecutive cache rows; a row's piece may be empty (it rides along).

        Returns:
            Logits after each row's last token, [B, V]; meaningless for a row with an empty piece.
        """
        rows = self._order[places.start : places.stop]
        width = max(map(len, pieces))
        past_B = np.array([self._cached[row] for row in rows])
        new_B = np.array([len(piece) for piece in pieces])
        span = int((past_B + new_B).max())
        positions_BQ = past_B[:, None] + np.arange(width) - (width - new_B)[:, None]
        padding_BQ = np.arange(width) < (width - new_B)[:, None]
        tokens_BQ = np.zeros((len(rows), width), dtype=np.int64)
        for index, piece in enumerate(pieces):
            if piece:
                tokens_BQ[index, -len(piece) :] = piece
        slots_BQ = np.where(padding_BQ, np.iinfo(np.int32).max, positions_BQ)
        positions = torch.from_numpy(positions_BQ.clip(min=0)).to(self._device)
        mask_BQS = torch.zeros((), dtype=self._hidden.dtype, device=self._device).where(
            torch.arange(span, device=self._device) <= positions[:, :, None], self._hidden
        )
        self._cache.plan(places, slots_BQ, span, self._device)
        output = self._model(
            input_ids=torch.from_numpy(tokens_BQ).to(self._device),
            position_ids=positions,
            attention_mask=mask_BQS[:, None],
            past_key_values=self._cache,
            use_cache=True,
            # An index, not the number 1: that takes a strided slice, for which the CPU's batched matrix product copies
            # the vocabulary head once per row (2 s per pass with 32 rows of SmolLM2).
            logits_to_keep=torch.tensor([width - 1], device=self._device),
        )
        for row, new in zip(rows, new_B.tolist(), strict=True):
            self._cached[row] += new
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def _shared(prompts: Sequence[list[int]]) -> int:
    """Tokens that several prompts share at their start. The last of each is left out: it must be read to sample."""
    if len(prompts) < 2:
        return 0
    lowest, highest = min(prompts), max(prompts)  # what these two share, all share
    same = next((i for i, (a, b) in enumerate(zip(lowest, highest, strict=False)) if a != b), len(lowest))
    return min(same, min(map(len, prompts)) - 1)
