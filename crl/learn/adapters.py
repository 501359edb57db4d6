"""LoRA adapters of a model (peft): what they are put on, and which weights stay as they are."""

from __future__ import annotations

import copy
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from crl.config import LoraConfig

_PREFIX = "base_model.model."
_NUMBER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class Adapted:
    """What of a model an adapter adapts, in numbers of its weights. Vectors (norms, biases) are not counted."""

    weights: int
    """Of the weights that have an adapter."""
    of: int
    frozen: dict[str, int]
    """Those that have none, by their names, with `*` for the number of a layer; the largest first."""
    idle: list[str]
    """Parts of the adapter that no gradient reaches."""


def with_adapter(model: Any, checkpoint: Path | None, lora: LoraConfig, source: str) -> Any:
    """The peft model of a transformers model, with the adapter of a checkpoint, or a fresh one."""
    import peft

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers.modeling_utils")  # peft's calls
    if checkpoint is not None:
        adapted: Any = peft.PeftModel.from_pretrained(model, str(checkpoint), is_trainable=True)
    else:
        config = _config(lora)
        if lora.target_modules == "all-linear":
            config.exclude_modules = _not_adapted(model, config)
            config.target_parameters = _left_out(model, lora, config.exclude_modules or ())
        adapted = peft.get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = source
    for module in adapted.modules():
        if isinstance(module, peft.tuners.lora.layer.ParamWrapper):  # it adds to the weight in the weight's own type
            module.get_param().data = module.get_param().float()
    return adapted


def add_to_base(model: nn.Module) -> None:
    """Have plain LoRA layers of a model add to what their base computes, on a CPU without autocast.

    peft's own forward pass makes three tensors of the size of the output more, and its backward pass two. Nothing is
    multiplied otherwise; sums may be taken in another order. Not under ZeRO-3, which gathers weights for the modules.
    """
    from peft.tuners.lora.layer import Linear

    for layer in model.modules():
        if type(layer) is Linear and not layer.lora_variant and type(layer.base_layer) is nn.Linear:
            layer.forward = partial(_adapted, layer, layer.forward)


def _adapted(layer: Any, otherwise: Callable[..., torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    if layer.disable_adapters or layer.merged or inputs.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return otherwise(inputs)
    (name,) = layer.active_adapters
    parts = layer.base_layer.weight, layer.base_layer.bias, layer.lora_A[name].weight, layer.lora_B[name].weight
    if any(each is not None and each.dtype != inputs.dtype for each in parts[2:]):
        return otherwise(inputs)
    return _Adapted.apply(inputs, *parts, layer.scaling[name])  # type: ignore[no-any-return, no-untyped-call]


class _Adapted(torch.autograd.Function):
    """x W^T + b + s x A^T B^T; W is frozen, and widened while it is multiplied with (:mod:`crl.learn.frozen`)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a_RI: torch.Tensor,
        b_OR: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        low_NR = inputs.reshape(-1, inputs.shape[-1]) @ a_RI.T
        found = nn.functional.linear(inputs, weight.to(inputs.dtype), bias)
        found.view(-1, found.shape[-1]).addmm_(low_NR, b_OR.T, alpha=scale)
        ctx.save_for_backward(inputs, weight, a_RI, b_OR, low_NR)
        ctx.scale = scale
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        inputs, weight, a_RI, b_OR, low_NR = ctx.saved_tensors
        grad_NO = grad.reshape(-1, grad.shape[-1])
        to_low_NR = (grad_NO @ b_OR).mul_(ctx.scale)
        to_a_RI = to_low_NR.T @ inputs.reshape(-1, inputs.shape[-1])
        to_b_OR = (grad_NO.T @ low_NR).mul_(ctx.scale)
        to_inputs = None
        if ctx.needs_input_grad[0]:
            to_inputs = (grad_NO @ weight.to(grad.dtype)).addmm_(to_low_NR, a_RI).view(inputs.shape)
        return to_inputs, None, None, to_a_RI, to_b_OR, None


def adapted_by(model: nn.Module, idle: Collection[str] = ()) -> Adapted:
    """What of a peft model its adapter adapts; `idle` are the adapter's parameters that have no gradient."""
    found, frozen = [0, 0], Counter[str]()
    for name, each, adapted in _weights(model):
        found[adapted] += each.numel()
        if not adapted:
            frozen[_NUMBER.sub(".*.", name)] += each.numel()
    without = {_NUMBER.sub(".*.", name.removeprefix(_PREFIX)) for name in idle}
    return Adapted(found[True], sum(found), dict(frozen.most_common()), sorted(without))


def _weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """The matrices of a peft model's base, with their names there, and whether they have an adapter."""
    from peft.tuners.lora.layer import LoraLayer, ParamWrapper

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    weights = [each.get_param() if isinstance(each, ParamWrapper) else each.get_base_layer().weight for each in layers]
    adapted = {id(each) for each in weights}
    for name, each in model.named_parameters():
        if not each.requires_grad and each.dim() > 1:
            yield name.removeprefix(_PREFIX).replace(".base_layer", ""), each, id(each) in adapted


def _config(lora: LoraConfig) -> Any:
    import peft

    alpha: Any = lora.lora_alpha
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=lora.target_modules,
        bias="none",
    )


def _left_out(model: Any, lora: LoraConfig, excluded: Collection[str]) -> list[str] | None:
    """What peft leaves out of all linear layers of a mixture of experts: weights that experts share a tensor for, in
    some families, and dense layers whose names experts once had, in others. It takes them by the names of parameters.
    None: nothing is left out.

    That is seen on a copy that has shapes and no numbers.
    """
    import peft

    modules = dict(model.named_modules())
    if not any(_of_experts(*named, each) for named in modules.items() for each in named[1].parameters(recurse=False)):
        return None
    empty = {id(each): nn.Parameter(each.detach().to("meta"), requires_grad=False) for each in model.parameters()}
    config = _config(lora)
    config.exclude_modules = list(excluded) or None
    adapted = peft.get_peft_model(copy.deepcopy(model, empty), config)
    head = model.get_output_embeddings()
    linear = {name for name, module in modules.items() if isinstance(module, nn.Linear) and module is not head}
    found = set()
    for name, each, has_adapter in _weights(adapted):
        owner, _, last = name.rpartition(".")
        wanted = (owner in linear and last == "weight") or _of_experts(owner, modules[owner], each)
        if wanted and not has_adapter and owner.rpartition(".")[2] not in excluded:
            found.add(_NUMBER.split(name)[-1])
    return sorted(found) or None


def _of_experts(name: str, module: nn.Module, parameter: torch.Tensor) -> bool:
    """Whether a parameter of a module holds a matrix of each expert."""
    return parameter.dim() == 3 and "expert" in f"{name} {type(module).__name__}".lower()


def _not_adapted(model: Any, config: Any) -> list[str] | None:
    """Modules of a state-space model that take no adapter: those that peft refuses, and `dt_proj`, of which only the
    weight is read. None: there are none."""
    from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

    found = []
    for name in sorted({name.rpartition(".")[2] for name, _ in model.named_modules()}):
        try:
            _check_lora_target_modules_mamba(config, model, name)
        except ValueError:
            found.append(name)
        else:
            found += [name] if name == "dt_proj" else []
    return found or None
