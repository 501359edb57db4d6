"""Attention that sampling does not compute is refused: Gemma 2 limits its scores, gpt-oss adds sinks."""

import shutil

import pytest
from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM

from crl.config import RoleConfig, SamplingConfig
from crl.errors import BadInput
from crl.policies import load_chat
from crl.policies.cache import ATTENTION
from crl.policies.language_model import LanguagePolicy, load_policy
from crl.policies.sources import resolve_model

SMALL = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 4,
}  # fmt: skip


def test_limited_scores_are_refused_before_any_work(tiny, tmp_path):
    path = shutil.copytree(tiny.path, tmp_path / "model")
    Gemma2ForCausalLM(Gemma2Config(**SMALL, attn_logit_softcapping=50.0)).save_pretrained(path)
    with pytest.raises(BadInput, match=r"softcap[\s\S]*method.roles.actor.model"):
        load_chat(resolve_model(str(path)), context=128, role="actor")
    with pytest.raises(BadInput, match="softcap"):
        load_policy(RoleConfig(model="capped", context=128), path, None, threads=1)


def test_a_model_without_a_limit_of_that_kind_is_taken(tiny, tmp_path):
    path = shutil.copytree(tiny.path, tmp_path / "model")
    Gemma2ForCausalLM(Gemma2Config(**SMALL, attn_logit_softcapping=None)).save_pretrained(path)
    assert load_policy(RoleConfig(model="plain", context=128), path, None, threads=1).context == 128


def test_sinks_are_refused_when_they_are_first_computed(tiny):
    config = GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1, sliding_window=128)
    model = GptOssForCausalLM(config)
    model.set_attn_implementation(ATTENTION)
    policy = LanguagePolicy(model, AutoTokenizer.from_pretrained(tiny.path), name="sunk", context=128)
    with pytest.raises(BadInput, match="GptOssAttention has attention with sinks"):
        policy.open([[5, 6, 7]], [0]).sample([0], SamplingConfig(max_new_tokens=2))
