"""The fastest way of reading rows in which a model computes what transformers computes, tried on the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch

from crl.config import SamplingConfig
from crl.config.models import Sampling
from crl.config.ways import (
    MOST_NATS,
    MOST_NATS_BFLOAT16,
    NEAR_NATS,
    TURN,
    Logprobs,
    check_nats,
    check_same_positions,
    check_sees_all,
    first_exact,
    plain_logprobs,
    rows_to_try,
)
from crl.errors import BadInput, StageFailed
from crl.policies.cache import ATTENTION
from crl.policies.session import BatchSession
from crl.policies.turn import StopStrings


@dataclass(frozen=True)
class Tried:
    """The way that is exact, and what was sampled in it."""

    way: Sampling
    rows: list[list[int]]
    logprobs: Logprobs
    """NaN: not sampled."""
    instead: str | None
    """What is wrong with the ways before it; None: it is the first."""


@torch.no_grad()
def exact_sampling(model: Any, context: int, absent: torch.Tensor | None = None) -> Tried:
    """Try a causal language model in evaluation mode, with its own attention; it is left with that of the way found.

    Raises BadInput where none is exact; it says why the first is not.
    """
    most = MOST_NATS if model.dtype == torch.float32 else MOST_NATS_BFLOAT16
    near = NEAR_NATS if model.dtype == torch.float32 else most
    ways: tuple[Sampling, ...] = get_args(Sampling)
    hidden = [] if absent is None else absent.tolist()
    own = model.config.get_text_config()._attn_implementation
    played: dict[Sampling, tuple[list[list[int]], Logprobs]] = {}

    def gap_of(way: Sampling) -> float:
        rows, told = rows_to_try(model.config, context, hidden)
        try:
            if way == "packed":
                check_sees_all(model, context)
            if way != "reread":
                check_same_positions(model, context)
            attend_by(model, way)
            logprobs = _played(model, way, rows, told, absent)
        finally:
            model.set_attn_implementation(own)
        plain = [each.tolist() for each in plain_logprobs(model, rows, absent)]
        played[way] = rows, logprobs
        return check_nats("log-probabilities differ from transformers'", logprobs, plain, most)

    way, problems = first_exact(ways, gap_of, near)
    if way is not None:
        attend_by(model, way)
        before = [problems[each] for each in ways[: ways.index(way)]]
        return Tried(way, *played[way], "; ".join(before) or None)
    raise BadInput(
        f"no way of sampling computes what transformers computes ({'; '.join(problems.values())})",
        expected="a model whose log-probabilities are those of its own forward pass",
        next_step="Use another model.",
    )


def attend_by(model: Any, way: Sampling) -> None:
    """Give a model, which has its own attention, the one that a way of sampling needs."""
    if way != "packed":
        return
    model.set_attn_implementation(ATTENTION)
    if model.config.get_text_config()._attn_implementation != ATTENTION:
        raise StageFailed("its attention cannot be set", expected="one that follows transformers' interface")


def _played(
    model: Any, way: Sampling, rows: list[list[int]], told: list[list[int]], absent: torch.Tensor | None
) -> Logprobs:
    """Let the rows, which grow, play two turns; NaN for what was not drawn."""
    logprobs = [[float("nan")] * (len(row) - 1) for row in rows]
    longest = max(map(len, rows)) + max(map(len, told)) + 2 * TURN + 1
    session = BatchSession(
        model, frozenset(), longest, rows, [1, 2], stops=lambda each: StopStrings(each, str), absent=absent, way=way
    )
    nothing: list[list[int]] = [[], []]
    for pieces in (told, nothing):
        session.begin([0, 1], SamplingConfig(max_new_tokens=TURN))
        ended = session.advance()
        while len(ended) < len(rows):
            ended |= session.advance()
        for row, piece in enumerate(pieces):
            rows[row] += [*ended[row].token_ids, *piece]
            logprobs[row] += [*ended[row].logprobs, *[float("nan")] * len(piece)]
        session.extend(dict(enumerate(pieces)))
    session.close()
    return logprobs
