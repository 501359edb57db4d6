"""The frozen base of an adapter stays in the type of its file, and every number is that of a float32 base."""

import pytest
import torch
from torch import nn
from transformers import (
    Dots1Config,
    Dots1ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from crl.config import LoraConfig
from crl.learn import frozen
from crl.learn.checkpoint import save_weights
from crl.learn.scoring import load_trainable

LORA = LoraConfig(r=4, lora_alpha=8)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def narrow_base(request, tmp_path):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, attention_bias=True,
    )  # fmt: skip
    LlamaForCausalLM(config).to(request.param).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(narrow_base, tmp_path):
    """One that has learned something."""
    model = load_trainable(narrow_base, None, lora=LORA, source="base", seed=1)
    state = {name: torch.randn_like(each) / 10 for name, each in model.named_parameters() if each.requires_grad}
    save_weights(model, state, tmp_path / "adapter")
    return tmp_path / "adapter"


def gradients_of(model, autocast):
    ids = torch.tensor([[5, 9, 2, 40, 7, 7, 1]])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), -1)[0, :-1, ids[0, 1:]].sum()
    loss.backward()
    return float(loss.detach()), {name: each.grad for name, each in model.named_parameters() if each.requires_grad}


def gradients_of_a_drawn_adapter(base, narrow):
    model = load_trainable(base, None, lora=LORA, source="base", seed=0, narrow=narrow)
    assert (torch.bfloat16 in {each.dtype for each in model.parameters()}) == narrow
    torch.manual_seed(4)
    for each in model.parameters():
        if each.requires_grad:
            nn.init.normal_(each, std=0.1)
    return gradients_of(model, False)


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_bit_by_bit_those_of_a_float32_base(narrow_base, adapter, autocast, checkpointing):
    narrow, wide = (
        load_trainable(
            narrow_base, adapter, lora=LORA, source="base", seed=0, gradient_checkpointing=checkpointing, narrow=each
        )
        for each in (True, False)
    )
    assert {each.dtype for each in wide.parameters()} == {torch.float32}
    (loss, found), (other, expected) = gradients_of(narrow, autocast), gradients_of(wide, autocast)
    assert loss == other and found.keys() == expected.keys() and len(found) == 28
    assert all(torch.equal(found[name], expected[name]) and found[name].any() for name in found)


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_that_scales_rounds_neither_its_rows_nor_its_scale(tmp_path, tied):
    config = Gemma3TextConfig(
        vocab_size=64, hidden_size=40, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
        num_key_value_heads=1, tie_word_embeddings=tied,
    )  # fmt: skip
    Gemma3ForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    (loss, found), (other, expected) = map(gradients_of_a_drawn_adapter, [tmp_path] * 2, (True, False))
    assert loss == other
    torch.testing.assert_close(found, expected)


def test_an_adapter_of_shared_experts_is_not_rounded_to_their_type(tmp_path):
    config = Dots1Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
    )  # fmt: skip
    Dots1ForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    (loss, found), (other, expected) = map(gradients_of_a_drawn_adapter, [tmp_path] * 2, (True, False))
    assert loss == other
    torch.testing.assert_close(found, expected)


def test_matrices_stay_narrow_and_all_else_is_float32(narrow_base):
    model = load_trainable(narrow_base, None, lora=LORA, source="base", seed=0)
    for name, each in model.named_parameters():
        stays = "lora" not in name and "norm" not in name and name.endswith("weight")
        assert (each.dtype != torch.float32) == stays, name
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_full_weights_are_float32(narrow_base):
    assert load_trainable(narrow_base, None, lora=None, source="base", seed=0).dtype == torch.float32


def test_a_model_that_reads_a_weight_by_itself_becomes_float32():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = LlamaConfig(vocab_size=8)
            self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)

        def forward(self, input_ids, use_cache):
            return self.embed(input_ids) @ self.head.weight.T

    model = Own().bfloat16().requires_grad_(False)
    frozen.widen(model)
    frozen.compute_wide(model)
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert model(torch.tensor([[1]]), False).dtype == torch.float32
