"""What an adapter is put on: all linear layers, where experts share a tensor too; what stays frozen is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from crl.config import LoraConfig
from crl.learn.adapters import adapted_by, add_to_base
from crl.learn.checkpoint import save_weights
from crl.learn.scoring import load_trainable
from crl.policies import resolve_model
from tests.architectures import write_small

KINDS: dict[str, set[str]] = {
    "llama": set(),
    "gpt_oss": {"mlp.experts.down_proj", "mlp.experts.gate_up_proj"},
    "deepseek_v3": {
        f"mlp.{part}{name}_proj.weight" for part in ("", "shared_experts.") for name in ("gate", "up", "down")
    },
    "qwen3_moe": set(),
    "mamba2": set(),
}
"""What peft is told besides: experts that it leaves out, or dense layers whose names experts once had."""


def adapted(kind: str, folder: Path, **lora: Any) -> Any:
    write_small(kind, folder, resolve_model("tiny").path, 512)
    return load_trainable(folder, None, lora=LoraConfig(**lora), source="base", seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_all_linear_leaves_out_embeddings_the_head_and_routers_alone(kind: str, tmp_path: Path) -> None:
    model = adapted(kind, tmp_path / "base")
    found = adapted_by(model)
    large = {name for name, size in found.frozen.items() if size > found.of / 50}
    ends = ("embed_tokens.weight", "embeddings.weight", "lm_head.weight", "out_proj.weight")  # the last one of Mamba 2
    assert all(name.endswith(ends) for name in large), large
    assert found.weights + sum(found.frozen.values()) == found.of
    assert KINDS[kind] <= set(model.peft_config["default"].target_parameters or ())
    state = {name: each.detach() + 1 for name, each in model.named_parameters() if each.requires_grad}
    save_weights(model, state, tmp_path / "adapter")
    again = PeftModel.from_pretrained(
        load_trainable(tmp_path / "base", None, lora=None, source="x", seed=0), tmp_path / "adapter"
    )
    read = {name: each for name, each in again.named_parameters() if "lora_" in name}
    assert read.keys() == state.keys() and all(read[name].equal(state[name]) for name in state), "peft alone reads it"


def test_what_is_named_is_adapted_and_nothing_else(tmp_path: Path) -> None:
    model = adapted("gpt_oss", tmp_path, target_modules=["q_proj"])
    found = adapted_by(model, idle=["base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"])
    assert {name for name, each in model.named_parameters() if each.requires_grad and "q_proj" not in name} == set()
    assert "model.layers.*.mlp.experts.gate_up_proj" in list(found.frozen)[:1], "the largest first"
    assert found.idle == ["model.layers.*.self_attn.q_proj.lora_A.default.weight"]


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_adding_in_place_computes_what_peft_computes(kind: str, narrow: bool, tmp_path: Path) -> None:
    write_small(kind, tmp_path, resolve_model("tiny").path, 512)
    if narrow:
        AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path)
    found = []
    for own in (False, True):
        model = load_trainable(tmp_path, None, lora=LoraConfig(r=4, lora_alpha=6.0), source="base", seed=0)
        torch.manual_seed(1)
        for name, each in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(each, std=0.1)
        if own:
            add_to_base(model)
        with torch.profiler.profile() as made:
            logits = model(torch.arange(2, 26).view(2, 12), use_cache=False).logits
        logits.double().square().mean().backward()
        grads = {name: each.grad for name, each in model.named_parameters() if each.requires_grad}
        with torch.no_grad(), model.disable_adapter():
            base = model(torch.arange(2, 26).view(2, 12), use_cache=False).logits
        found.append((logits.detach(), grads, base, len(made.events())))
    (logits, grads, base, steps), (own_logits, own_grads, own_base, own_steps) = found
    assert torch.equal(base, own_base) and not torch.allclose(base, logits, atol=1e-3)
    torch.testing.assert_close(own_logits, logits, rtol=1e-5, atol=1e-6)
    assert own_steps < steps, "it is another way"
    for name, each in grads.items():
        torch.testing.assert_close(own_grads[name], each, rtol=1e-4, atol=1e-5 * float(each.abs().max()))
        assert each.abs().max() > 0, name
