"""The sizes of a model that memory, disk and time follow from: read from `config.json`, or known by name.

Weights are never needed. Shapes of models that this project's configs name are kept here, so that an experiment can be
estimated before anything is downloaded; the `config.json` of a model that is on this machine wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crl.config import LoraConfig
from crl.config.roles import ENDPOINT
from crl.policies.sources import HUB_ID, is_path, takes_preparing


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

    @property
    def attention(self) -> int:
        """Width of queries and of what attention returns."""
        return self.query or self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of one layer: query, key, value, output; gate, up, down."""
        return self.hidden * (2 * self.attention + 2 * self.key_value + 3 * self.intermediate)

    @property
    def matrix_parameters(self) -> int:
        """Parameters that take part in matrix products: all layers and the vocabulary head, not the embeddings."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.matrix_parameters + (0 if self.tied else self.vocabulary * self.hidden)

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Trained parameters of low-rank adapters: rank times input and output width of each linear layer."""
        widths = {
            "q_proj": self.hidden + self.attention,
            "k_proj": self.hidden + self.key_value,
            "v_proj": self.hidden + self.key_value,
            "o_proj": self.attention + self.hidden,
            "gate_proj": self.hidden + self.intermediate,
            "up_proj": self.hidden + self.intermediate,
            "down_proj": self.intermediate + self.hidden,
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
    "Qwen/Qwen2.5-1.5B-Instruct": ModelShape(151_936, 1536, 28, 256, 8960),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(152_064, 3584, 28, 512, 18_944, tied=False),
    "Qwen/Qwen3-4B-Thinking-2507": ModelShape(151_936, 2560, 36, 1024, 9728, query=4096),
    "Qwen/Qwen3-4B-Instruct-2507": ModelShape(151_936, 2560, 36, 1024, 9728, query=4096),
    "Qwen/Qwen3-Embedding-0.6B": ModelShape(151_669, 1024, 28, 1024, 3072, query=2048),
}
"""By the name that a config gives them."""


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of a config that say of how many feed-forward parts a mixture of experts is made."""


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
    if any(found.get(key) for key in _EXPERTS):
        return None  # many times as large as its layers say
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
            query=0 if heads * head == hidden else heads * head,
        )
    except KeyError:
        return None


def readiness(name: str) -> str:
    """In words, of a name that was checked; nothing is loaded, prepared or downloaded.

    A Hugging Face id that was downloaded in part counts as missing: the download goes on where it stopped.
    """
    if takes_preparing(name):
        return "will be prepared on first use"
    if is_path(name) or not HUB_ID.fullmatch(name):
        return "ready"
    config = config_file(name)
    if config is not None and any(config.parent.glob("*.safetensors")):
        return "ready"
    return "not on this machine: will be downloaded from Hugging Face on first use"


def _configs(model: str) -> Iterator[Path]:
    from crl.paths import models_directory
    from crl.policies.sources import trained_weights, warm_checkpoint

    if (checkpoint := warm_checkpoint(model)) is not None:
        yield checkpoint / "config.json"
        return
    if (trained := trained_weights(model)) is not None:
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
