"""The frozen base of an adapter in the type of its file: half the memory of float32, and the same numbers.

Only the weights of plain linear layers and embeddings stay narrow, which are nearly all. A pass widens the weight of a
linear layer to float32 while it multiplies with it; under autocast the product is bfloat16 either way. Rows of an
embedding are widened when they are read. Everything else is float32. So nothing is rounded that would not be with a
float32 base: widening is exact, and torch refuses a product of two types instead of rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import nn

from crl.config.models import weight_files
from crl.config.vocabulary import rows_of_model


class _Product(torch.autograd.Function):
    """x W^T with a frozen W that is kept narrow: its wide copy lives as long as one product."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return nn.functional.linear(inputs, weight.to(inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return gradients[0] @ weight.to(gradients[0].dtype), None, None


def _linear(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    if inputs.dtype == layer.weight.dtype or torch.is_autocast_enabled(inputs.device.type):
        return nn.functional.linear(inputs, layer.weight, layer.bias)
    return _Product.apply(inputs, layer.weight, layer.bias)  # type: ignore[no-any-return, no-untyped-call]


def _tried(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """Only the types are those of :func:`_linear`: nothing is widened, for a vocabulary's matrix is large."""
    output = nn.functional.linear(inputs.to(layer.weight.dtype), layer.weight).to(inputs.dtype)
    return output if layer.bias is None else output + layer.bias


def _widened(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output.float()


def _can_be_narrow(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, nn.Embedding)


def _narrow_modules(model: nn.Module) -> list[Any]:
    """Plain linear layers and embeddings whose weight is no other module's: Gemma's head shares that of an embedding
    which also scales."""
    others = {
        id(each)
        for module in model.modules()
        if not _can_be_narrow(module)
        for each in module.parameters(recurse=False)
    }
    return [each for each in model.modules() if _can_be_narrow(each) and id(each.weight) not in others]


def wide_in(directory: Path) -> dict[str, torch.Tensor] | None:
    """What a checkpoint's files hold in float32 although its matrices are narrow: norms and biases, by name.

    None where it cannot be read narrow without rounding: matrices are float32, or fp8, of which each number has a
    float32 scale. (mxfp4 has powers of two.)
    """
    wide = {}
    for path in weight_files(directory):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                if part.get_dtype().startswith("F8") or (part.get_dtype() == "F32" and len(part.get_shape()) > 1):
                    return None
                if part.get_dtype() == "F32":
                    wide[name] = file.get_tensor(name)
    return wide


def restore(model: Any, wide: Mapping[str, torch.Tensor]) -> bool:
    """Give a model that was read narrow the numbers of :func:`wide_in`, and those that its code makes (a scale of
    embeddings), which it rounded. False, where it knows one of the file by another name."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if not all(name in own and own[name].shape == tensor.shape for name, tensor in wide.items()):
        return False
    for name, tensor in wide.items():
        own[name].data = tensor.to(own[name].device)
    made = {name for name, each in model.named_buffers() if each.dtype in (torch.bfloat16, torch.float16)} - wide.keys()
    if made := made - model.state_dict().keys():
        with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
            unrounded = dict(type(model)._from_config(model.config, dtype=torch.float32).named_buffers())
        for name in made:
            own[name].data = unrounded[name].to(own[name].device)
    return True


def widen(model: nn.Module, *, all_of_it: bool = False) -> None:
    """Make a model float32 but for the weights that :func:`compute_wide` can keep narrow."""
    kept = set() if all_of_it else {id(module.weight) for module in _narrow_modules(model)}
    for each in (*model.parameters(), *model.buffers()):
        if each.is_floating_point() and id(each) not in kept:
            each.data = each.data.float()


def compute_wide(model: Any) -> None:
    """Have a model whose weights are partly narrow and frozen compute what it would with float32 weights.

    A model that reads the weight of a linear layer by itself breaks in a short pass. That is tried, and it becomes
    float32.
    """
    narrow = [each for each in _narrow_modules(model) if each.weight.dtype != torch.float32]
    if not narrow:
        return
    linear = [each for each in narrow if isinstance(each, nn.Linear)]
    hooks = [each.register_forward_hook(_widened) for each in narrow if isinstance(each, nn.Embedding)]
    for layer in linear:
        layer.forward = partial(_tried, layer)  # type: ignore[method-assign]
    try:
        with torch.no_grad():
            model(
                input_ids=torch.arange(2, device=narrow[0].weight.device)[None] % rows_of_model(model.config),
                use_cache=False,
            )
    except RuntimeError:
        for layer in linear:
            del layer.forward
        for hook in hooks:
            hook.remove()
        widen(model, all_of_it=True)
        return
    for layer in linear:
        layer.forward = partial(_linear, layer)  # type: ignore[method-assign]
