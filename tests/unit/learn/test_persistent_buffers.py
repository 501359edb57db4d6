"""Buffers that belong to a model's weights are in its checkpoints: DeepSeek-V3's routers have one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from crl.config import ActorObjective, OptimizerConfig, RoleConfig, WarmStartConfig
from crl.errors import RecordDamaged
from crl.learn.scoring import load_trainable
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
from crl.learn.warm_start import run_warm_start
from crl.policies.language_model import load_model
from crl.records import Sample

ROLE = RoleConfig(model="routed", optimizer=OptimizerConfig(learning_rate=1e-2))
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
MakeSamples = Callable[..., list[Sample]]


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a DeepSeek-V3 of two layers, one with experts, whose router has a bias."""
    directory = tmp_path_factory.mktemp("routed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = DeepseekV3Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            moe_intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            kv_lora_rank=8,
            q_lora_rank=8,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=16,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=5,
        )
        model = DeepseekV3ForCausalLM(config)
        model.get_submodule(BIAS.rpartition(".")[0]).e_score_correction_bias.copy_(torch.tensor([0.5, -0.25, 0.0, 1.0]))
        model.save_pretrained(directory)
    return directory


def _bias(model: torch.nn.Module) -> list[float]:
    return [float(each) for each in dict(model.named_buffers())[BIAS]]


def test_an_update_keeps_them_for_sampling_and_for_the_next_update(
    routed: Path, random_samples: MakeSamples, tmp_path: Path
) -> None:
    trainer = Trainer(ROLE, model_path=routed, checkpoint=None, threads=1)
    assert trainer.update(random_samples(4), objectives(ActorObjective()))["update_norm"] > 0
    trainer.save(tmp_path / "c")
    trainer.dispose()
    assert _bias(load_model(routed, tmp_path / "c", dtype=torch.float32)) == [0.5, -0.25, 0.0, 1.0]
    again = load_trainable(routed, tmp_path / "c", lora=None, source="routed", seed=0)
    assert _bias(again) == [0.5, -0.25, 0.0, 1.0]


def test_a_supervised_start_keeps_them(routed: Path, random_samples: MakeSamples, tmp_path: Path) -> None:
    settings = WarmStartConfig(num_train_epochs=1, learning_rate=1e-2)
    run_warm_start(ROLE, routed, random_samples(2, "nll"), settings, seed=1, threads=1, output_dir=tmp_path / "c")
    assert _bias(load_model(routed, tmp_path / "c", dtype=torch.float32)) == [0.5, -0.25, 0.0, 1.0]


def test_training_does_not_go_on_from_random_numbers(routed: Path, tmp_path: Path) -> None:
    model = load_model(routed, None, dtype=torch.float32)
    model.save_pretrained(tmp_path / "c")
    weights = load_file(tmp_path / "c" / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, tmp_path / "c" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecordDamaged, match="up_proj"):
        load_trainable(routed, tmp_path / "c", lora=None, source="routed", seed=0)
