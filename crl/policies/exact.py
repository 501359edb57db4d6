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
    plain_logprobs,
    rows_to_try,
)
from crl.errors import BadInput, CrlError, StageFailed
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
    problems: list[str] = []
    nearest: tuple[float, Tried] | None = None
    hidden = [] if absent is None else absent.tolist()
    for way in get_args(Sampling):
        rows, told = rows_to_try(model.config, context, hidden)
        own = model.config.get_text_config()._attn_implementation
        try:
            if way == "packed":
                check_sees_all(model, context)
            if way != "reread":
                check_same_positions(model, context)
            attend_by(model, way)
            logprobs = _played(model, way, rows, told, absent)
            if way == "packed":
                model.set_attn_implementation(own)
            plain = [each.tolist() for each in plain_logprobs(model, rows, absent)]
            gap = check_nats("log-probabilities differ from transformers'", logprobs, plain, most)
            if nearest is None or gap < nearest[0]:
                nearest = gap, Tried(way, rows, logprobs, "; ".join(problems) or None)
            if gap <= near:
                break
            problems.append(f"{way}: {gap:.1e} nats")
            model.set_attn_implementation(own)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of whatever code the model has
            said = error.found if isinstance(error, CrlError) else f"{type(error).__name__}: {error}"
            problems.append(f"{way}: {next(iter(said.splitlines()), '')[:200]}")
            model.set_attn_implementation(own)
    if nearest is not None:
        attend_by(model, nearest[1].way)
        return nearest[1]
    raise BadInput(
        f"no way of sampling computes what transformers computes ({'; '.join(problems)})",
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
