"""A model whose attention sees a window of what it reads, and no more."""

from __future__ import annotations

from pathlib import Path


def write_windowed(directory: Path, window: int) -> None:
    """Write a Mistral of one layer with random weights into a directory, over the model that is there."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=window,
    )
    MistralForCausalLM(config).save_pretrained(directory)
