"""What an experiment will need: memory of a process and disk of a run, estimated from the config alone.

Upper bounds in round numbers, made to refuse a run before it starts rather than after an hour: nothing is loaded, a
checkpoint's `config.json` is all that is read. They leave out what a GPU driver or an allocator adds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crl.config import Experiment, LoraConfig, RoleConfig
from crl.policies.embedder_sources import EMBEDDERS
from crl.run.disk import require_free

_FLOAT32, _FLOAT16 = 4, 2
_ADAM_MOMENTS = 2
_PROCESS = 800 * 2**20
"""A process with torch, transformers and a small embedder, before any model."""
_TOKEN_ROW = 18
"""Bytes per token on disk: id, mask and log-probability, once as a generation and once as a sample."""
_ACTIVATIONS = 34
"""Bytes a token, layer and unit of width that a backward pass keeps (float32 with a fused attention)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that memory follows from."""

    vocabulary: int
    hidden: int
    layers: int
    key_value: int
    """Width of keys, and of values: key-value heads times their size."""
    intermediate: int
    tied: bool = True

    @property
    def parameters(self) -> int:
        """Parameters of a decoder of the Llama kind."""
        attention = self.hidden * (2 * self.hidden + 2 * self.key_value)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.layers * layer

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Trained parameters with low-rank adapters on every linear layer."""
        widths = 4 * self.hidden + 2 * (self.hidden + self.key_value) + 3 * (self.hidden + self.intermediate)
        return self.layers * lora.rank * widths


SHAPES = {
    "tiny": ModelShape(512, 64, 2, 32, 176),
    "smollm2-135m-instruct": ModelShape(49_152, 576, 30, 192, 1536),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run needs; None where the model is not known yet (a Hugging Face id that is not on this machine)."""

    memory_bytes: int | None
    """Peak of an engine process: sampling models, one training state, the key-value cache, activations."""
    checkpoint_bytes: int | None
    """The checkpoints that retention keeps, and one more while it is written."""
    round_bytes: int
    """Rows of one round."""
    unknown: tuple[str, ...] = ()
    """Models whose size is not known."""

    def disk_bytes(self, rounds: int) -> int | None:
        """What so many rounds write in all; None where a model is unknown."""
        return None if self.checkpoint_bytes is None else self.checkpoint_bytes + rounds * self.round_bytes


def config_file(model: str) -> Path | None:
    """The `config.json` of a model by its name or directory; None where it is not on this machine."""
    return next((path for path in _configs(model) if path.is_file()), None)


def shape_of(model: str) -> ModelShape | None:
    """The shape of a model by its name or directory; None where it is not on this machine."""
    config = config_file(model)
    if config is None:
        return SHAPES.get(model)
    found = json.loads(config.read_text(encoding="utf-8"))
    try:
        hidden, heads = found["hidden_size"], found["num_attention_heads"]
        head = found.get("head_dim") or hidden // heads
        return ModelShape(
            vocabulary=found["vocab_size"],
            hidden=hidden,
            layers=found["num_hidden_layers"],
            key_value=(found.get("num_key_value_heads") or heads) * head,
            intermediate=found.get("intermediate_size") or 4 * hidden,
            tied=bool(found.get("tie_word_embeddings", True)),
        )
    except KeyError:
        return None


def estimate(experiment: Experiment) -> Estimate:
    """Memory and disk that an experiment needs."""
    method = experiment.method
    roles = {owner: method.role(owner) for owner in method.owners()}
    shapes = {name: shape_of(role.model) for name, role in roles.items()}
    embedder, reading = method.recipe.embedder(), 0
    episodes = sum(family.groups for family in method.families) * method.rollout.group_size
    # Of every role one record per episode: what it played, or what it wrote about it.
    round_bytes = _TOKEN_ROW * episodes * sum(method.role(name).context for name in method.recipe.roles())
    unknown = {roles[name].model for name, shape in shapes.items() if shape is None}
    if embedder is not None and embedder.name not in EMBEDDERS:
        shape = shape_of(embedder.name)
        unknown |= {embedder.name} if shape is None else set()
        reading = 0 if shape is None else _FLOAT32 * shape.parameters
    if unknown:
        return Estimate(None, None, round_bytes, tuple(sorted(unknown)))
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    rows = min(method.rollout.wave_groups, sum(family.groups for family in method.families)) * method.rollout.group_size
    sampling = sum(_sampling(known[name], role, rows) for name, role in roles.items())
    training = max(_training(known[name], role) for name, role in roles.items())
    kept = experiment.runtime.keep_checkpoints + 1
    checkpoints = sum(kept * _checkpoint(known[name], role) for name, role in roles.items() if name in method.trained())
    return Estimate(_PROCESS + reading + sampling + training, checkpoints, round_bytes)


def check_disk(experiment: Experiment, run_path: Path, rounds: int) -> None:
    """Raise NotEnoughDisk where what a run still has to write does not fit, with `min_free_gigabytes` left over."""
    total = estimate(experiment).disk_bytes(rounds)
    if total is None:
        return
    present = sum(path.stat().st_size for path in run_path.rglob("*") if path.is_file()) if run_path.is_dir() else 0
    # What a run that goes on already holds is replaced, not added; its rows stay and new ones come.
    needed = max(total - present, rounds * estimate(experiment).round_bytes)
    reserve = int(experiment.runtime.min_free_gigabytes * 1e9)
    require_free(run_path, needed_bytes=needed, reserve_bytes=reserve)


def gigabytes(count: int) -> str:
    """Bytes as people read them."""
    return f"{count / 1e9:.1f} GB" if count >= 5e7 else f"{count / 1e6:.1f} MB"


def _configs(model: str) -> Iterator[Path]:
    from crl.policies.sources import models_directory, warm_checkpoint

    if (checkpoint := warm_checkpoint(model)) is not None:
        yield checkpoint / "config.json"
        return
    yield Path(model).expanduser() / "config.json"
    if "/" not in model:
        yield from sorted(models_directory().glob(f"{model}-v*/config.json"), reverse=True)
    elif not model.startswith(("/", ".", "~")):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, "config.json")
        if isinstance(cached, str):
            yield Path(cached)


def _sampling(shape: ModelShape, role: RoleConfig, rows: int) -> int:
    size = _FLOAT16 if role.dtype == "bfloat16" else _FLOAT32
    cache = rows * role.context * shape.layers * 2 * shape.key_value * size
    return shape.parameters * size + cache


def _training(shape: ModelShape, role: RoleConfig) -> int:
    """Float32 weights, gradients, moments, and the activations and logits of a micro batch."""
    trained = shape.parameters if role.lora is None else shape.adapter_parameters(role.lora)
    moments = _ADAM_MOMENTS if role.optimizer.kind == "adamw" else 0
    state = _FLOAT32 * (shape.parameters + trained * (1 + moments) // max(1, _shards(role)))
    tokens = role.deepspeed.micro_batch * role.context
    layers = 1 if role.deepspeed.gradient_checkpointing else shape.layers
    size = _FLOAT16 if role.deepspeed.autocast == "bfloat16" else _FLOAT32
    activations = tokens * shape.hidden * layers * _ACTIVATIONS * size // _FLOAT32
    return state + activations + 2 * _FLOAT32 * tokens * shape.vocabulary


def _shards(role: RoleConfig) -> int:
    return role.deepspeed.ranks if role.deepspeed.zero_stage else 1


def _checkpoint(shape: ModelShape, role: RoleConfig) -> int:
    trained = shape.parameters if role.lora is None else shape.adapter_parameters(role.lora)
    moments = _ADAM_MOMENTS if role.optimizer.kind == "adamw" else 0
    return _FLOAT32 * trained * (1 + moments)
