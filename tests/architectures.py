"""Small random models of every architecture that transformers calls a causal language model, as checkpoints on disk."""

from __future__ import annotations

import contextlib
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

SMALL = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embedding_size": 64, "word_embed_proj_dim": 64,
    "emb_dim": 64, "lru_width": 64, "attention_hidden_size": 64,
    "intermediate_size": 96, "ffn_dim": 96, "ffn_hidden_size": 96, "d_ff": 96, "n_inner": 96, "decoder_ffn_dim": 96,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "expert_ffn_hidden_size": 32,
    "expert_hidden_size": 32, "dense_intermediate_size": 96, "moe_shared_expert_intermediate_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "decoder_attention_heads": 4, "num_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "global_head_dim": 16,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "qk_head_dim": 24, "o_lora_rank": 16, "index_head_dim": 16, "index_n_heads": 4,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "top_k_experts": 2, "n_group": 1, "topk_group": 1,
    "zero_expert_num": 0, "n_shared_experts": 1, "num_shared_experts": 1, "first_k_dense_replace": 1,
    "max_position_embeddings": 4096, "n_positions": 4096, "max_seq_len": 4096, "context_length": 4096, "n_ctx": 4096,
    "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0,
    "state_size": 8, "conv_kernel": 4, "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "mamba_d_ssm": 128,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "rotary_dim": 8, "initializer_range": 0.08, "init_std": 0.08,
}  # fmt: skip
"""Sizes by the names that configs have for them."""
_SMALL_EYES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "depth": 1, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 16,
}  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
ODD: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "diffllama": {"attention_dropout": 0.0},
    "dots3_note_text": {
        "per_layer_config": {}, "num_hidden_layers": 2, "layer_types": ["indexed_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"], "head_dim": 24, "v_head_dim": 16,
        "shared_experts_intermediate_size": 32, "num_key_value_heads": 4,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16,
        "indexer_compress_ratio": 2, "ple_embed_dim": 64, "ngram_vocab_size_base": 64, "heads_per_ngram": 2,
        "split_ngram_parts": 4, "hc_lowrank": 16,
    },
    "zamba": {
        "num_hidden_layers": 6, "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4,
    },
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""What some architectures need besides, or cannot have."""


def kinds() -> list[str]:
    """The model types, sorted."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small_config(kind: str, vocabulary: int, **more: Any) -> Any:
    """A config of the architecture's own defaults, with few and narrow layers: as few as hold a layer of each kind."""
    found = _config(kind, vocabulary, **more)
    if (kinds_of := _layers(CONFIG_MAPPING[kind]())) and "num_hidden_layers" not in {*more, *ODD.get(kind, ())}:
        for layers in (2, 4, 6, 8):
            with contextlib.suppress(Exception):
                larger = _config(kind, vocabulary, **more, **dict.fromkeys(_LAYERS, layers))
                if _layers(larger) == kinds_of:
                    return larger
    return found


def _layers(config: Any) -> set[type]:
    """The kinds of state that layers of a model have."""
    with contextlib.suppress(Exception):
        return {type(layer) for layer in DynamicCache(config=config).layers}
    return set()


def _config(kind: str, vocabulary: int, **more: Any) -> Any:
    known = _settings(CONFIG_MAPPING[kind])
    chosen = {name: value for name, value in SMALL.items() if name in known}
    if "kv_lora_rank" in known:  # latent attention has as many heads of keys as of queries
        chosen |= {name: 4 for name in ("num_key_value_heads", "num_kv_heads") if name in known}
    chosen |= {"vocab_size": vocabulary} if "vocab_size" in known else {}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    chosen |= {**special, **{name: value for name, value in more.items() if name in known}, **ODD.get(kind, {})}
    return CONFIG_MAPPING[kind](**chosen)


def parameters(kind: str, vocabulary: int) -> int:
    """How many a small model of an architecture has; nothing is made."""
    config = small_config(kind, vocabulary)
    with torch.device("meta"):
        return sum(each.numel() for each in MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).parameters())


def _settings(config: type) -> set[str]:
    names = set(inspect.signature(config.__init__).parameters)
    names |= set(getattr(config, "__dataclass_fields__", ()))
    return names | set(getattr(config, "attribute_map", ()))


def write_small(
    kind: str, folder: Path, tokenizer: Path, vocabulary: int, dtype: torch.dtype = torch.float32, **more: Any
) -> str:
    """Write a random model of an architecture with the tokenizer of a folder. Returns the name of its class."""
    config = small_config(kind, vocabulary, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).to(dtype)
    _save(model, folder, tokenizer)
    return type(model).__name__


def write_seeing(kind: str, folder: Path, tokenizer: Path, vocabulary: int) -> None:
    """Write a random model that also sees, and holds a text model."""
    whole = CONFIG_MAPPING[kind]()
    eyes = type(whole.vision_config)
    known = _settings(eyes)
    vision = eyes(**{name: value for name, value in _SMALL_EYES.items() if name in known})
    text = small_config(whole.get_text_config().model_type, vocabulary)
    config = CONFIG_MAPPING[kind](text_config=text.to_dict(), vision_config=vision.to_dict())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)](config).float()
    _save(model, folder, tokenizer)


def _save(model: Any, folder: Path, tokenizer: Path) -> None:
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder)
    for file in _files_of_tokenizer(tokenizer):
        shutil.copy(file, folder / file.name)


def _files_of_tokenizer(folder: Path) -> Iterator[Path]:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        with contextlib.suppress(OSError):
            if (folder / name).is_file():
                yield folder / name
