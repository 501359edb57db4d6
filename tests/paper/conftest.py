"""The model whose probabilities the equations are checked with."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights and 32 words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=32, initializer_range=0.3, pad_token_id=None,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory
