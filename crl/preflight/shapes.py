"""The sizes of a model that memory, disk and time follow from: read from `config.json`, or known by name.

Weights are never needed. Shapes of models that this project's configs name are kept here, so that an experiment can be
estimated before anything is downloaded; the `config.json` of a model that is on this machine wins.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crl.config import LoraConfig
from crl.config.roles import ENDPOINT
from crl.errors import BadInput
from crl.policies.hub import HUB_ID
from crl.policies.sources import (
    TrainedWeights,
    is_path,
    is_whole,
    numbers_by_type,
    takes_preparing,
    trained_weights,
    warm_checkpoint,
)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of the Llama kind; norms and biases (a few parts per ten thousand) are left out."""

    vocabulary: int
    hidden: int
    layers: int
    key_value: int
    """Width of keys, and of values: key-value heads times their size."""
    intermediate: int
    tied: bool = True
    """Whether the vocabulary head shares the weights of the embeddings."""
    query: int = 0
    """Width of queries, heads times their size; 0: the hidden width."""
    experts: int = 1
    """Feed-forward parts of a layer, each of the intermediate width."""
    chosen: int = 1
    """How many of them read a token."""
    size: int = 4
    """Bytes per parameter in its files, once they are plain numbers."""
    counted: int = 0
    """All parameters, where its files are here; 0: they follow from the widths."""

    @property
    def attention(self) -> int:
        """Width of queries and of what attention returns."""
        return self.query or self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of one layer: query, key, value, output; gate, up, down of each expert."""
        return self.hidden * (2 * self.attention + 2 * self.key_value + 3 * self.intermediate * self.experts)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts; 0 without a choice among several."""
        return 0 if self.experts == 1 else 3 * self.layers * self.hidden * self.intermediate * self.experts

    @property
    def widest(self) -> int:
        """Parameters of the largest matrix of a linear layer: the vocabulary head's, or of a layer."""
        return self.hidden * max(self.vocabulary, self.intermediate, self.attention)

    @property
    def matrix_parameters(self) -> int:
        """Parameters that take part in matrix products: all layers and the vocabulary head, not the embeddings."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.counted or self.matrix_parameters + (0 if self.tied else self.vocabulary * self.hidden)

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Trained parameters of low-rank adapters: rank times input and output width of each linear layer."""
        widths = {
            "q_proj": self.hidden + self.attention,
            "k_proj": self.hidden + self.key_value,
            "v_proj": self.hidden + self.key_value,
            "o_proj": self.attention + self.hidden,
            "gate_proj": self.experts * (self.hidden + self.intermediate),
            "up_proj": self.experts * (self.hidden + self.intermediate),
            "down_proj": self.experts * (self.intermediate + self.hidden),
        }
        named = (
            []
            if isinstance(lora.target_modules, str)
            else [width for name, width in widths.items() if name in lora.target_modules]
        )
        return self.layers * lora.r * sum(named or widths.values())


SHAPES = {
    "tiny": ModelShape(512, 64, 2, 32, 176),
    "smollm2-135m-instruct": ModelShape(49_152, 576, 30, 192, 1536),
    "Qwen/Qwen2.5-1.5B-Instruct": ModelShape(151_936, 1536, 28, 256, 8960, size=2),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(152_064, 3584, 28, 512, 18_944, tied=False, size=2),
    "Qwen/Qwen3-4B-Thinking-2507": ModelShape(151_936, 2560, 36, 1024, 9728, query=4096, size=2),
    "Qwen/Qwen3-4B-Instruct-2507": ModelShape(151_936, 2560, 36, 1024, 9728, query=4096, size=2),
    "Qwen/Qwen3-Embedding-0.6B": ModelShape(151_669, 1024, 28, 1024, 3072, query=2048, size=2),
}
"""By the name that a config gives them."""


_NAMES = {
    "vocabulary": ("vocab_size",),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "key_value_heads": ("num_key_value_heads",),
    "intermediate": ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "chosen": ("num_experts_per_tok",),
}
"""Keys of a config by what they say; the first that is there."""
_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
"""Of a parameter in a file, by its type there; of packed numbers, such as those of mxfp4, a byte holds two."""


def config_file(model: str) -> Path | None:
    """The `config.json` of a model by its name or directory; None where it is not on this machine."""
    return next((path for path in _configs(model) if path.is_file()), None)


def shape_of(model: str) -> ModelShape | None:
    """The shape of a model by its name or directory; None where it is neither on this machine nor known by name."""
    if model.startswith(ENDPOINT):
        return ModelShape(0, 0, 0, 0, 0)  # its memory is somebody else's
    config = config_file(model)
    if config is None:
        return SHAPES.get(model)
    found = json.loads(config.read_text(encoding="utf-8"))
    found |= found.get("text_config") or {}  # of a model that also sees
    told = {what: next((found[key] for key in keys if found.get(key)), 0) for what, keys in _NAMES.items()}
    if not (told["vocabulary"] and told["hidden"] and told["layers"]):
        return None
    counted, size = _in_files(config.parent)
    hidden, heads = told["hidden"], told["heads"]
    head = found.get("head_dim") or (hidden // heads if heads else 0)
    return ModelShape(
        vocabulary=told["vocabulary"],
        hidden=hidden,
        layers=told["layers"],
        key_value=(told["key_value_heads"] or heads) * head,
        intermediate=told["intermediate"] or 4 * hidden,
        tied=bool(found.get("tie_word_embeddings", True)),
        query=0 if heads * head == hidden else heads * head,
        experts=max(1, told["experts"]),
        chosen=max(1, told["chosen"]),
        size=size or (2 if "16" in str(found.get("dtype") or found.get("torch_dtype")) else 4),
        counted=counted,
    )


def _in_files(directory: Path) -> tuple[int, int]:
    """Parameters of a checkpoint, by the headers of its files, and bytes of one; 0 and 0 where it is not all here."""
    if not is_whole(directory):
        return 0, 0
    counts: Counter[int] = Counter()
    for kind, count in numbers_by_type(directory).items():
        size = _BYTES.get(kind, 0)
        counts[size] += count * (1 if size else 2)
    plain = {size: count for size, count in counts.items() if size > 1}
    # Numbers in fp8 have float32 scales: without rounding they are float32.
    return counts.total(), 4 if counts[1] else max(plain, key=plain.__getitem__, default=2)


def readiness(name: str) -> str:
    """In words, of a name that was checked; nothing is loaded, prepared or downloaded.

    A Hugging Face id that was downloaded in part counts as missing: the download goes on where it stopped.
    """
    if takes_preparing(name):
        return "will be prepared on first use"
    if (trained := _trained(name)) is not None and trained.adapter:
        return readiness(trained.base)
    if is_path(name) or not HUB_ID.fullmatch(name):
        return "ready"
    config = config_file(name)
    if config is not None and is_whole(config.parent):
        return "ready"
    return "not on this machine: will be downloaded from Hugging Face on first use"


def _trained(model: str) -> TrainedWeights | None:
    """As `trained_weights`; None also where they are not there, which another check says."""
    try:
        return trained_weights(model)
    except BadInput:
        return None


def _configs(model: str) -> Iterator[Path]:
    from crl.paths import models_directory

    if (checkpoint := warm_checkpoint(model)) is not None:
        yield checkpoint / "config.json"
        return
    if (trained := _trained(model)) is not None:
        yield trained.checkpoint / "config.json"
        yield from _configs(trained.base)
        return
    yield Path(model).expanduser() / "config.json"
    if "/" not in model:
        yield from sorted(models_directory().glob(f"{model}-v*/config.json"), reverse=True)
    elif not model.startswith(("/", ".", "~")):
        from huggingface_hub import try_to_load_from_cache

        found = HUB_ID.fullmatch(model)
        cached = try_to_load_from_cache(found[1], "config.json", revision=found[2]) if found else None
        if isinstance(cached, str):
            yield Path(cached)
