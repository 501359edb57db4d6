"""Sampling by a model's own cache: what is sampled is what teacher forcing scores, whatever the batch."""

import shutil

import numpy as np
import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from crl.config import RoleConfig, SamplingConfig
from crl.policies.language_model import load_policy
from tests.architectures import write_small
from tests.scored import sequence_logprobs
from tests.unit.policies.test_session import _play, _prompts

WINDOWS = {"sliding_window": 8, "window_size": 8, "attention_window_size": 8}
slow = pytest.mark.slow


def _written(kind, folder, tiny):
    if kind != "longrope":
        write_small(kind, folder, tiny.path, 512, **WINDOWS)
        return
    shutil.copytree(tiny.path, folder, dirs_exist_ok=True)
    rope = {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
            "rope_theta": 10000.0, "original_max_position_embeddings": 64}  # fmt: skip
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    Phi3ForCausalLM(
        Phi3Config(
            vocab_size=512,
            **sizes,
            max_position_embeddings=512,
            original_max_position_embeddings=64,
            rope_parameters=rope,
            pad_token_id=0,
        )
    ).save_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("gpt_oss", "padded"),  # windows and sinks
        pytest.param("qwen3_next", "padded", marks=slow),  # states and attention
        ("rwkv", "rows"),  # states alone
        pytest.param("mamba", "tokens", marks=slow),
        ("longrope", "reread"),  # positions that all tokens of a row change together
        pytest.param("bloom", "padded", marks=slow),  # biases by position
        pytest.param("gemma3_text", "padded", marks=slow),
        pytest.param("falcon_h1", "padded", marks=slow),
        pytest.param("falcon_mamba", "tokens", marks=slow),
        pytest.param("recurrent_gemma", "reread", marks=slow),
    ],
)
def test_stored_logprobs_are_those_of_teacher_forcing(kind, way, tiny, tmp_path):
    _written(kind, tmp_path, tiny)
    policy = load_policy(RoleConfig(model=kind, context=256, dtype="float32"), tmp_path, None, threads=1)
    assert policy.way == way
    prompts = _prompts(np.random.default_rng(3), 2, 3)
    prompts.append(prompts[0])  # equal ones are read once
    sampling = SamplingConfig(temperature=0.8, max_new_tokens=7)
    ids, logprobs = _play(policy, prompts, turns=5, sampling=sampling, leave=0.1, limit=5, cut=0.5)
    scored = _as_drawn(policy, ids) if kind == "longrope" else sequence_logprobs(policy.model, ids, 0.8, batch=1)
    apart = [np.abs(one - np.array(other)) for one, other in zip(scored, logprobs, strict=True)]
    assert np.nanmax(np.concatenate(apart)) < 1e-4
    assert max(map(len, ids)) > 64
    alone, _ = _play(policy, prompts[2:3], turns=1, sampling=sampling, keys=[2])
    length = len(prompts[2]) + 1
    first = {each[length - 1] for each in ids if each[: length - 1] == prompts[2]}
    assert alone[0][length - 1] in first, "the first token of a row does not depend on the rows beside"


@torch.inference_mode()
def _as_drawn(policy, rows):
    """Of each token behind what was there: a row that outgrows the original length takes other positions for all."""

    def drawn(row, end):
        logits_V = policy.model(input_ids=torch.tensor([row[:end]]), use_cache=False).logits[0, -1]
        return float(torch.log_softmax(logits_V / 0.8, -1)[row[end]])

    return [np.array([0, *(drawn(row, end) for end in range(1, len(row)))]) for row in rows]
