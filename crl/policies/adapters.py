"""What a LoRA adapter adds to the weights that it adapts, as peft merges it, without a peft model (Hu et al. 2021,
arXiv 2106.09685, section 4.1: W + (alpha / r) B A)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_PLAIN = {"peft_type": "LORA", "bias": "none"}
_ANY = {
    "base_model_name_or_path", "inference_mode", "init_lora_weights", "lora_alpha", "lora_dropout", "megatron_core",
    "peft_version", "qalora_group_size", "r", "revision", "target_modules", "task_type",
}  # fmt: skip
"""Settings that say nothing of what is added to a module beside A, B and one scale. Any other has to be off."""


def additions(adapter: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]] | None:
    """What makes the float32 matrix that is added to each weight, by the weight's name.

    None where the adapter is not plain LoRA of modules that have a tensor of their own among `weights`: of a head that
    is tied to the embeddings, for instance.
    """
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    file = adapter / "adapter_model.safetensors"
    if not file.is_file() or not _is_plain(config):
        return None
    tensors = load_file(file)
    modules = [name.removeprefix(_PREFIX).removesuffix(_A) for name in tensors if name.endswith(_A)]
    halves = {f"{module}.weight": tuple(f"{_PREFIX}{module}{half}" for half in (_A, _B)) for module in modules}
    if {name for both in halves.values() for name in both} != tensors.keys() or not halves.keys() <= weights.keys():
        return None
    scale = config["lora_alpha"] / config["r"]
    return {name: functools.partial(_product, tensors[a], tensors[b], scale) for name, (a, b) in halves.items()}


def _is_plain(config: Mapping[str, Any]) -> bool:
    return all(value == _PLAIN[key] if key in _PLAIN else not value for key, value in config.items() if key not in _ANY)


def _product(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    # Clones: the last digits of a product can depend on where a file's mapping begins.
    return b.float().clone() @ a.float().clone() * scale
