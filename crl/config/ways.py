"""Which way of computing a model is exact: rows to try it on, and what transformers computes of them.

Two rows that begin alike and go on with unequal lengths play two short turns. What draws and what learns are compared
with a forward pass of the model as it is, over the rows whole. In float32 computing the same in another way moves the
last digits only. What a layer's mask shows is looked at over the whole context: rows are too short to leave a window.

Libraries of models are those of who asks: here none is imported.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from crl.config.vocabulary import rows_of_model
from crl.errors import CrlError, StageFailed

MOST_NATS = 0.002
"""Most that a log-probability may differ in float32. Of small random models the worst of what is right differs by 3e-5,
the least of what is not by 0.04."""
MOST_NATS_BFLOAT16 = 2.0
"""The same in bfloat16, in which models that are right differ by 0.6 (experts are chosen by what was rounded)."""
NEAR_NATS = 1e-4
"""A way that is so near in float32 is taken at once; of those that are not, the nearest. SmolLM2-135M: 1.2e-5."""
TURN = 2
"""Tokens of a turn."""
_SEED = 20260317
_ALIKE, _APART, _TOLD = 18, (2, 7), (2, 5)
"""Tokens that both rows begin with, that each has to itself, and that it is told between its turns."""
_LONGEST = 2**16
"""Positions of a row where a config has no bound for them."""

Way = TypeVar("Way", bound=str)
"""Of sampling, or of updating (`crl.config.models`)."""
Logprobs = list[list[float]]
"""Of two rows, of each token but the first; NaN is not compared."""


def rows_to_try(config: Any, context: int, absent: Sequence[int] = ()) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of both prompts, and those that each row is told after its first turn."""
    tokens = np.setdiff1d(np.arange(rows_of_model(config)), absent)
    ids = iter(np.random.default_rng(_SEED).choice(tokens, 100).tolist())
    longest = _APART[1] + _TOLD[1] + 2 * TURN
    counts = min(_ALIKE, context - 1 - longest), *_APART, *_TOLD
    alike, *pieces = ([next(ids) for _ in range(count)] for count in counts)
    return [alike + pieces[0], alike + pieces[1]], pieces[2:]


def longest_row(config: Any) -> int:
    """Most tokens of a row that a model has positions for."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or _LONGEST)


def plain_logprobs(model: Any, rows: Sequence[Sequence[int]], absent: Any = None) -> list[Any]:
    """Log-probabilities of each row's tokens but the first, read whole by the model as it is, among ids that are not
    `absent` (a tensor). A gradient goes through them. Padded on the right, where causal attention never looks: no mask.
    """
    torch = sys.modules["torch"]
    width = max(map(len, rows))
    ids_BT = torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows], device=model.device)
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1].float()
    if absent is not None:
        hidden_V = torch.zeros(logits_BTV.shape[-1], dtype=torch.bool, device=model.device)
        hidden_V[absent.to(model.device)] = True
        logits_BTV = logits_BTV.masked_fill(hidden_V, float("-inf"))
    found_BT = torch.log_softmax(logits_BTV, -1).gather(2, ids_BT[:, 1:, None])[..., 0]
    return [found[: len(row) - 1] for found, row in zip(found_BT, rows, strict=True)]


def check_nats(problem: str, one: Logprobs, other: Logprobs, most: float) -> float:
    """The largest difference of two log-probabilities of one token. Raises StageFailed where it is more than `most`."""
    pairs = [pair for row in zip(one, other, strict=True) for pair in zip(*row, strict=True)]
    first, second = np.array([pair for pair in pairs if not np.isnan(pair[0])]).T
    apart = np.abs(first - second)
    worst = float(apart.max()) if np.isfinite(apart).all() else float("inf")
    if not worst <= most:
        raise StageFailed(
            f"{problem}: by {worst:.3g} nats at most, {float(apart.mean()):.3g} on average, over {len(apart)} tokens",
            expected=f"at most {most} nats",
        )
    return worst


def first_exact(ways: Sequence[Way], gap_of: Callable[[Way], float], near: float) -> tuple[Way | None, dict[Way, str]]:
    """The first way whose log-probabilities are `near` those of transformers, else the nearest; None: none is right.

    `gap_of` tries a way, and raises where it is wrong. Also what is wrong with each that was tried and is not near.
    """
    torch = sys.modules["torch"]
    gaps, problems = dict[Way, float](), dict[Way, str]()
    for way in ways:
        try:
            gaps[way] = gap_of(way)
            if gaps[way] <= near:
                break
            problems[way] = f"{way}: {gaps[way]:.1e} nats"
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of whatever code the model has
            said = error.found if isinstance(error, CrlError) else f"{type(error).__name__}: {error}"
            problems[way] = f"{way}: {next(iter(said.splitlines()), '')[:200]}"
    return min(gaps, key=gaps.__getitem__, default=None), problems


def check_sees_all(model: Any, context: int) -> None:
    """Raise StageFailed where a layer of a model with its own attention sees less than a whole context, or positions
    depend on how long a row is: such attention is not plain."""
    torch = sys.modules["torch"]
    ids_1T = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with torch.no_grad(), _masks_seen(model, context) as seen:
        model(input_ids=ids_1T, use_cache=False)
    if (least := min(seen, default=context)) < context:
        raise StageFailed(f"it has layers that see {least} tokens of a row", expected=f"{context}, the whole context")


def check_same_positions(model: Any, context: int) -> None:
    """Raise StageFailed where a long row makes rotary positions other ones, of all of its tokens and of rows beside:
    a cache, and passes that rows share, would hold both kinds. Leaves them as they were."""
    torch = sys.modules["torch"]
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model  # without an adapter around it
    if "position_ids" not in inspect.signature(whole.forward).parameters:
        return
    ids_1T = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    before = {name: each.clone() for name, each in model.named_buffers() if "inv_freq" in name}
    with torch.no_grad():
        model(input_ids=ids_1T, position_ids=torch.tensor([[0, context - 1]], device=model.device), use_cache=False)
        after = {name: each.clone() for name, each in model.named_buffers() if "inv_freq" in name}
        model(input_ids=ids_1T, use_cache=False)
    if any(name in before and not torch.equal(each, before[name]) for name, each in after.items()):
        raise StageFailed("its positions change with the length of a row", expected="the same ones in any row")


@contextmanager
def _masks_seen(model: Any, context: int) -> Iterator[list[int]]:
    """Inside, of every mask that a layer attends with: how many tokens the last of a whole context sees. Of every mask
    that is made, where attention is the model's own code."""
    torch, transformers = sys.modules["torch"], sys.modules["transformers"]
    masks = sys.modules["transformers.masking_utils"].ALL_MASK_ATTENTION_FUNCTIONS
    attentions = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
    kind = model.config.get_text_config()._attn_implementation
    if kind not in masks:
        yield []  # an older architecture, whose own attention cannot be set
        return
    make, attend = masks[kind], attentions.get(kind)
    made, seen = list[tuple[Any, int]](), list[int]()

    def making(*args: Any, mask_function: Callable[..., Any], **more: Any) -> Any:
        keys = torch.arange(context, device=model.device)
        count = int(torch.as_tensor(mask_function(0, 0, keys[-1], keys)).expand(context).sum())
        more |= {"allow_is_causal_skip": False}
        made.append((make(*args, mask_function=mask_function, **more), count))
        seen.extend([] if attend else [count])
        return made[-1][0]

    def attending(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **more: Any) -> Any:
        assert attend is not None
        seen.extend(count for mask, count in made if mask is attention_mask)
        return attend(module, query, key, value, attention_mask, *args, **more)

    transformers.AttentionMaskInterface.register(kind, making)
    if attend:
        transformers.AttentionInterface.register(kind, attending)
    try:
        yield seen
    finally:
        transformers.AttentionMaskInterface.register(kind, make)
        if attend:
            transformers.AttentionInterface.register(kind, attend)
