"""A role's checkpoint: sampling weights and optimizer state, the same bytes whenever the same update is repeated.

Layout of a checkpoint directory::

    model.safetensors, config.json, generation_config.json          full weights (float32), or
    adapter_model.safetensors, adapter_config.json                  the adapter alone (peft layout)
    deepspeed/engine.json                                           ZeRO stage, ranks, optimizer; updates so far
    deepspeed/optimizer-rank00000.safetensors                       this rank's part of the optimizer state

The state is written here rather than by DeepSpeed's `save_checkpoint`, whose files repeat the weights once or twice
(module states, float32 partitions) next to the sampling weights. Weights are float32 throughout, so the sampling
weights are the training weights, and weights plus optimizer state are all that resuming needs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from crl.config.models import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from crl.errors import FrozenMethodChanged, RecordDamaged
from crl.run.files import hash_soon
from crl.run.tensors import layout_of, write_tensors

ENGINE_DIRECTORY = "deepspeed"


def save_weights(model: Any, state: Mapping[str, torch.Tensor], directory: Path) -> None:
    """Write sampling weights of a transformers or peft model from whole tensors by parameter name.

    The directory may exist. Whatever would differ between two equal runs is settled: an adapter's module names are
    sorted (peft keeps them in a set), and its model card, which repeats library versions, is removed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    adapter = hasattr(model, "peft_config")
    # peft would otherwise look for the base model's config on the hub to see whether its vocabulary grew.
    options: dict[str, Any] = {"save_embedding_layers": False} if adapter else {}
    model.save_pretrained(directory, state_dict=dict(state), **options)
    hash_soon(directory.glob("*.safetensors"))
    if adapter:
        (directory / "README.md").unlink(missing_ok=True)
        path = directory / ADAPTER_CONFIG
        config = json.loads(path.read_text(encoding="utf-8"))
        for key, value in config.items():
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                config[key] = sorted(value)
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def take_adapter(source: Path, directory: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write the adapter of a folder into another one, in a type, without optimizer state. Checkpoints are float32."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(source / ADAPTER_WEIGHTS).items()}
    save_file(tensors, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(source / ADAPTER_CONFIG, directory / ADAPTER_CONFIG)


def persistent_buffers(model: Any) -> dict[str, torch.Tensor]:
    """The buffers that belong to a model's weights, by name: nothing trains them, and nobody can do without them (the
    `e_score_correction_bias` of routers like DeepSeek-V3's)."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def _state_file(directory: Path, rank: int) -> Path:
    return directory / ENGINE_DIRECTORY / f"optimizer-rank{rank:05d}.safetensors"


def save_optimizer(optimizer: torch.optim.Optimizer, parts: Sequence[torch.Tensor], directory: Path, rank: int) -> None:
    """Write this rank's optimizer state: one tensor per part and state name. `parts` are what the optimizer steps."""
    path = _state_file(directory, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{index:05d}.{name}": value
        for index, part in enumerate(parts)
        for name, value in optimizer.state.get(part, {}).items()
        if isinstance(value, torch.Tensor)
    }
    write_tensors(path, {name: layout_of(value) for name, value in tensors.items()}, tensors.__getitem__)


def load_optimizer(optimizer: torch.optim.Optimizer, parts: Sequence[torch.Tensor], directory: Path, rank: int) -> None:
    """Restore what :func:`save_optimizer` wrote, bit by bit. Raises RecordDamaged where it does not fit."""
    path = _state_file(directory, rank)
    try:
        tensors = load_file(path)
    except Exception as error:
        raise RecordDamaged(
            f"optimizer state cannot be read: {error}",
            expected="the file that the update wrote",
            where=str(path),
            next_step="run `crl verify` on the run",
        ) from error
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        part = parts[int(index)] if int(index) < len(parts) else None
        if part is None or (value.dim() > 0 and value.shape != part.shape):
            raise RecordDamaged(
                f"{key} has shape {tuple(value.shape)}, which fits no parameter",
                expected=f"{len(parts)} parts" if part is None else str(tuple(part.shape)),
                where=str(path),
                next_step="run `crl verify` on the run",
            )
        optimizer.state[part][name] = value.to(part.device) if value.dim() > 0 else value


def write_engine(directory: Path, engine: Mapping[str, Any], updates: int) -> None:
    """Write what the optimizer state was made by, and in how many updates."""
    path = directory / ENGINE_DIRECTORY / "engine.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**engine, "updates": updates}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def optimizer_updates(directory: Path, engine: Mapping[str, Any]) -> int | None:
    """Updates that made the checkpoint's optimizer state; None where it has none: a supervised start leaves none.

    Raises FrozenMethodChanged where it was made with another ZeRO stage, number of ranks or optimizer.
    """
    path = directory / ENGINE_DIRECTORY / "engine.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    updates = found.pop("updates", 0)
    if found != dict(engine):
        raise FrozenMethodChanged(
            f"the optimizer state was written by {found}",
            expected=f"{dict(engine)}",
            where=str(path),
            next_step="train with the settings of the run, or start a new experiment from these weights",
        )
    return int(updates)
