"""Log-probabilities from logits: those of all rows at once, without tensors of that size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crl.learn.scoring import _Chosen, log_normalizer

ROWS, VOCABULARY = 200, 97


class Large(TorchDispatchMode):
    """Notes the operations that make a tensor as large as the logits; a view makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.numel() >= ROWS * VOCABULARY and not func.is_view:
            self.made.append(str(func))
        return out


def _inputs(choices: bool, dtype: torch.dtype) -> tuple[Any, ...]:
    torch.manual_seed(0)
    targets_N = torch.randint(0, VOCABULARY, (ROWS,))
    choices_NC = None
    if choices:
        choices_NC = torch.stack([targets_N, (targets_N + 1) % VOCABULARY, torch.full_like(targets_N, -1)], 1)
        choices_NC[::3] = -1
    logits_NV = (8 * torch.randn(ROWS, VOCABULARY)).to(dtype).requires_grad_()
    return logits_NV, 0.3 + torch.rand(ROWS), targets_N, choices_NC


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("choices", [False, True], ids=["free", "restricted"])
def test_parts_give_the_numbers_of_all_rows_at_once(choices: bool, dtype: torch.dtype) -> None:
    logits_NV, temperature_N, targets_N, choices_NC = _inputs(choices, dtype)
    weights_N = torch.randn(ROWS)
    scaled_NV = logits_NV.float() / temperature_N[:, None]
    expected_N = scaled_NV.gather(1, targets_N[:, None])[:, 0] - log_normalizer(scaled_NV, choices_NC)
    [gradient] = torch.autograd.grad(expected_N @ weights_N, logits_NV, retain_graph=True)
    inputs = (logits_NV, temperature_N, targets_N, choices_NC)
    found_N, *_ = _Chosen.apply(None, *inputs, None)  # type: ignore[no-untyped-call]
    assert torch.equal(found_N, expected_N)
    assert torch.equal(torch.autograd.grad(found_N @ weights_N, logits_NV)[0], gradient)
    # Those of some ids beside it: the target is one of them.
    some_NK = torch.stack([targets_N, (targets_N + 1) % VOCABULARY], 1)
    _, _, logprobs_NK = _Chosen.apply(None, *inputs, some_NK)  # type: ignore[no-untyped-call]
    assert torch.equal(logprobs_NK[:, 0], expected_N)
    mine, other = (torch.autograd.grad(each @ weights_N, logits_NV)[0] for each in (
        logprobs_NK[:, 1], scaled_NV.gather(1, some_NK[:, 1:])[:, 0] - log_normalizer(scaled_NV, choices_NC),
    ))  # fmt: skip
    torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("choices", [False, True], ids=["free", "restricted"])
def test_entropies_are_those_of_what_a_token_was_drawn_from(choices: bool) -> None:
    """By sums over each row's choices, in float64; an id that is no token has no part in it."""
    logits_NV, temperature_N, targets_N, choices_NC = _inputs(choices, torch.float32)
    absent = torch.tensor([5, 40])
    with torch.no_grad():
        logits_NV[:, 3] = 2000.0  # exp would overflow, and all others have no probability
        logits_NV[50:, 3] = -2000.0
    weights_N = torch.randn(ROWS)
    exact_NV = logits_NV.detach().double().requires_grad_()
    expected = []
    for row in range(ROWS):
        allowed = [] if choices_NC is None else [int(each) for each in choices_NC[row] if each >= 0]
        ids = allowed or list(range(VOCABULARY))
        scaled = exact_NV[row, [each for each in ids if each not in absent]] / temperature_N[row].double()
        scores = torch.log_softmax(scaled, 0)
        expected.append(-(scores.exp() * scores).sum())
    expected_N = torch.stack(expected)
    inputs = (logits_NV, temperature_N, targets_N, choices_NC, None)
    _, found_N, _ = _Chosen.apply(absent, *inputs)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found_N.double(), expected_N, rtol=1e-5, atol=2e-5)
    [gradient] = torch.autograd.grad(expected_N @ weights_N.double(), exact_NV)
    [ours] = torch.autograd.grad(found_N @ weights_N, logits_NV)
    torch.testing.assert_close(ours.double(), gradient, rtol=1e-4, atol=1e-4)


def test_only_the_gradient_is_as_large_as_the_logits() -> None:
    inputs = _inputs(False, torch.float32)
    with Large() as large:
        found_N, entropy_N, _ = _Chosen.apply(None, *inputs, None)  # type: ignore[no-untyped-call]
        assert large.made == []
        torch.autograd.grad(found_N.sum() + entropy_N.sum(), inputs[0])
    assert large.made == ["aten.empty_like.default"]
