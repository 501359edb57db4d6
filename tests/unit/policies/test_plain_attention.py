"""Attention that packed passes do not compute, Gemma 2's limited scores and gpt-oss's sinks, is transformers' own."""

import pytest
from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM

from crl.config import SamplingConfig
from crl.errors import BadInput
from crl.policies.language_model import LanguagePolicy

SMALL = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 4,
}  # fmt: skip


def _policy(model, tiny, way=None):
    return LanguagePolicy(model, AutoTokenizer.from_pretrained(tiny.path), name="made", context=128, way=way)


def _capped(cap):
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, attn_logit_softcapping=cap))


def _sunk():
    return GptOssForCausalLM(GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1, sliding_window=128))


@pytest.mark.parametrize(("model", "way"), [(lambda: _capped(None), "packed"), (lambda: _capped(50.0), "padded")])
def test_the_fastest_way_that_is_exact_is_taken(tiny, model, way):
    assert _policy(model(), tiny).way == way


@pytest.mark.parametrize(("model", "said"), [(lambda: _capped(50.0), "limited scores"), (_sunk, "with sinks")])
def test_a_packed_pass_of_other_attention_is_an_error_and_no_sample(tiny, model, said):
    policy = _policy(model(), tiny, way="packed")
    with pytest.raises(BadInput, match=said):
        policy.open([[5, 6, 7]], [0]).sample([0], SamplingConfig(max_new_tokens=2))
