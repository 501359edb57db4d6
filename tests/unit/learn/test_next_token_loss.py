"""The loss of a supervised step, whose head sees trained tokens only, against plain cross entropy over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crl.learn.warm_start import next_token_loss
from tests.unit.learn.conftest import VOCABULARY

IGNORED = -100
LENGTHS = (9, 5, 12)
"""Tokens of the rows; what follows is padding."""


@pytest.fixture
def model(base_model: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(base_model, dtype=torch.float32).train()


def batch(*, seed: int = 0, share: float = 0.5) -> dict[str, Tensor]:
    """A padded batch in which about a share of the tokens is trained; never one of the padding."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(LENGTHS), max(LENGTHS))
    ids_BT = torch.randint(VOCABULARY, size, generator=generator)
    mask_BT = torch.arange(size[1])[None] < torch.tensor(LENGTHS)[:, None]
    ids_BT[~mask_BT] = 0
    trained_BT = (torch.rand(size, generator=generator) < share) & mask_BT
    return {
        "input_ids": ids_BT,
        "labels": ids_BT.masked_fill(~trained_BT, IGNORED),
        "attention_mask": mask_BT.long(),
    }


def plain(model: Any, inputs: dict[str, Tensor], reduction: str = "mean") -> Tensor:
    """Cross entropy of every token from the one before it, over logits of the whole batch."""
    logits_BTV = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    return torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].reshape(-1, VOCABULARY), inputs["labels"][:, 1:].reshape(-1), ignore_index=IGNORED,
        reduction=reduction,
    )  # fmt: skip


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_loss_and_gradients_are_those_of_plain_cross_entropy(model: Any) -> None:
    inputs = batch()
    found, expected = next_token_loss(model, inputs, None), plain(model, inputs)
    torch.testing.assert_close(found, expected)
    mine, theirs = gradients(model, next_token_loss(model, inputs, None)), gradients(model, expected)
    assert mine.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, msg=name)


def test_padding_and_what_is_not_trained_change_nothing(model: Any) -> None:
    inputs = batch()
    trained = int((inputs["labels"][:, 1:] != IGNORED).sum())
    alone = torch.stack(
        [
            next_token_loss(model, {name: value[row : row + 1, :length] for name, value in inputs.items()}, trained)
            for row, length in enumerate(LENGTHS)
        ]
    )
    torch.testing.assert_close(next_token_loss(model, inputs, None), alone.sum())
    first = {**inputs, "labels": inputs["labels"].clone()}
    first["labels"][:, 0] = inputs["input_ids"][:, 0]  # nothing stands before it that it could be told from
    assert next_token_loss(model, first, None) == next_token_loss(model, inputs, None)


def test_micro_batches_of_a_step_add_up_to_its_mean(model: Any) -> None:
    parts = [batch(seed=1, share=0.9), batch(seed=2, share=0.1)]
    numbers = [int((part["labels"][:, 1:] != IGNORED).sum()) for part in parts]
    assert numbers[0] != numbers[1]
    found = sum(next_token_loss(model, part, torch.tensor(sum(numbers))) for part in parts)
    torch.testing.assert_close(found, sum(plain(model, part, "sum") for part in parts) / sum(numbers))


def test_nothing_trained_is_no_loss_and_the_head_is_whole_again(model: Any) -> None:
    inputs = batch()
    silent = {**inputs, "labels": torch.full_like(inputs["labels"], IGNORED)}
    loss = next_token_loss(model, silent, None)
    assert loss == 0 and all(bool((value == 0).all()) for value in gradients(model, loss).values())
    assert model(input_ids=inputs["input_ids"]).logits.shape == (*inputs["input_ids"].shape, VOCABULARY)
    with pytest.raises(IndexError):
        next_token_loss(model, {**inputs, "input_ids": torch.full_like(inputs["input_ids"], VOCABULARY)}, None)
    assert model(input_ids=inputs["input_ids"]).logits.shape == (*inputs["input_ids"].shape, VOCABULARY)
