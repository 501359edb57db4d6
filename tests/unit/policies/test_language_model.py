"""Loading policies: base, full checkpoint, LoRA adapter; what cannot be used is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from crl.config import RoleConfig, SamplingConfig
from crl.errors import BadInput, RecordDamaged
from crl.policies.language_model import load_policy
from tests.marks import NEEDS_BFLOAT16
from tests.scored import sequence_logprobs
from tests.windowed import write_windowed

IDS = [np.random.default_rng(0).integers(5, 512, number).tolist() for number in (30, 7, 300)]
ROLE = RoleConfig(model="tiny")


@pytest.fixture
def adapter(tiny, tmp_path):
    """A LoRA adapter that changes the model, and the log-probabilities of the unmerged model."""
    return adapted(tiny, tmp_path, "all-linear")


def adapted(tiny, tmp_path, modules):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny.path)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", sequence_logprobs(model.eval(), IDS, 1.0, batch=2)


def _difference(policy, expected):
    scored = sequence_logprobs(policy.model, IDS, 1.0, batch=3)
    return max(np.abs(a - b).max() for a, b in zip(scored, expected, strict=True))


def test_a_merged_adapter_equals_the_unmerged_one(tiny, policy, adapter):
    path, expected = adapter
    assert _difference(load_policy(ROLE, tiny.path, path, threads=1), expected) < 1e-4
    assert _difference(policy, expected) > 1e-2  # the adapter does something


@pytest.mark.parametrize("modules", [["lm_head"], ["q_proj", "embed_tokens"], ["lm_head", "embed_tokens"]])
def test_what_is_learned_of_a_tied_head_or_of_its_embeddings_stays_there(tiny, policy, tmp_path, modules):
    assert policy.model.config.tie_word_embeddings
    path, expected = adapted(tiny, tmp_path, modules)
    assert _difference(load_policy(ROLE, tiny.path, path, threads=1), expected) < 1e-4
    assert _difference(policy, expected) > 1e-2


def test_full_weights_replace_the_base(tiny, policy, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    weights = load_file(tiny.path / "model.safetensors")
    changed = {name: tensor * 1.1 for name, tensor in weights.items()}
    save_file(changed, checkpoint / "model.safetensors", metadata={"format": "pt"})
    loaded = load_policy(ROLE, tiny.path, checkpoint, threads=1)
    for name, tensor in loaded.model.state_dict().items():
        if name in changed:
            assert torch.equal(tensor.cpu(), changed[name])
    assert loaded.end_ids == policy.end_ids


def test_missing_or_misshapen_weights_are_an_error_not_random_numbers(tiny, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    with pytest.raises(RecordDamaged, match="neither weights nor an adapter"):
        load_policy(ROLE, tiny.path, checkpoint, threads=1)
    weights = load_file(tiny.path / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecordDamaged, match="up_proj"):
        load_policy(ROLE, tiny.path, checkpoint, threads=1)


@NEEDS_BFLOAT16
def test_bfloat16_samples_near_its_teacher_forcing(tiny):
    policy = load_policy(RoleConfig(model="tiny", dtype="bfloat16"), tiny.path, None, threads=1)
    assert policy.model.dtype == torch.bfloat16
    session = policy.open(IDS[:2], [0, 1])
    out = session.sample([0, 1], SamplingConfig(max_new_tokens=20))
    whole = [IDS[row] + out[row].token_ids for row in (0, 1)]
    for row, scored in enumerate(sequence_logprobs(policy.model, whole, 1.0, batch=2)):
        assert np.abs(scored[len(IDS[row]) :] - out[row].logprobs).max() < 0.1


def test_scoring_is_the_plain_log_softmax(policy):
    scored = sequence_logprobs(policy.model, IDS, 0.7, batch=2)
    for ids, row in zip(IDS, scored, strict=True):
        with torch.inference_mode():
            logits = policy.model(input_ids=torch.tensor([ids], device=policy.model.device)).logits[0].double().cpu()
        expected = torch.log_softmax(logits / 0.7, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        assert row[0] == 0
        assert np.abs(row[1:] - expected.numpy()).max() < 1e-4


def test_the_models_own_end_tokens_end_a_turn(tiny, tmp_path):
    path = shutil.copytree(tiny.path, tmp_path / "model")
    config = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [7, 9]}))
    assert load_policy(ROLE, path, None, threads=1).end_ids == {4, 7, 9}


def test_a_context_longer_than_the_model_is_refused(tiny):
    with pytest.raises(BadInput, match="longer than the model"):
        load_policy(RoleConfig(model="tiny", context=4096), tiny.path, None, threads=1)


def test_attention_that_forgets_is_the_models_own(tmp_path, tiny):
    path = shutil.copytree(tiny.path, tmp_path / "model")
    write_windowed(path, 64)
    assert load_policy(RoleConfig(model="forgetful", context=128), path, None, threads=1).way == "padded"
    assert load_policy(RoleConfig(model="forgetful", context=64), path, None, threads=1).way == "packed"
