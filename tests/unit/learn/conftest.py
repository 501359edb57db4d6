"""A miniature model and random multi-turn samples for the tests of `crl/learn`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from crl.records import Sample

VOCABULARY = 64


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a two-layer Llama with random weights and tied embeddings."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("base")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            tie_word_embeddings=True,
            initializer_range=0.2,
            eos_token_id=5,
            pad_token_id=None,
        )
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture
def random_samples() -> Callable[..., list[Sample]]:
    """`random_samples(count, objective, seed)`: multi-turn samples with masks, both signs, ratios off 1."""

    def make(count: int, objective: str = "grpo", seed: int = 0) -> list[Sample]:
        rng = np.random.default_rng(seed)
        samples = []
        for index in range(count):
            turns = int(rng.integers(1, 4))
            mask = [0] * int(rng.integers(2, 6))
            for _ in range(turns):
                mask += [0] * int(rng.integers(1, 4)) + [1] * int(rng.integers(1, 5))
            samples.append(
                Sample(
                    sample_id=f"s{index}",
                    round=1,
                    role="actor",
                    objective=objective,
                    source="0001/collect",
                    generation_id=f"g{index}",
                    reward=0.0,
                    advantage=1.0 if objective == "nll" else float(rng.normal()),
                    weight=float(rng.uniform(0.05, 0.5)),
                    temperature=1.1,
                    token_ids=[int(token) for token in rng.integers(0, VOCABULARY, len(mask))],
                    loss_mask=mask,
                    logprobs=[float(-4.2 + 0.5 * rng.normal()) * value for value in mask],
                )
            )
        return samples

    return make
