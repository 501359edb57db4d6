"""What stands beside the weights of a checkpoint: transformers and peft open its folder by themselves."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from crl.config.roles import RoleConfig, SamplingConfig
from crl.config.vocabulary import load_tokenizer
from crl.errors import BadInput
from crl.learn.checkpoint import save_weights
from crl.learn.scoring import load_trainable
from crl.policies.companions import add_companions, name_base
from crl.policies.language_model import load_model
from crl.policies.sources import check_model, directory_digest, resolve_model

SAMPLING = SamplingConfig(temperature=0.7, top_p=0.9, top_k=11, max_new_tokens=5)
CHAT = [{"role": "user", "content": "go north"}]


def checkpoint_of(tiny, folder, *, lora, source=None, others=(), role=None):
    """A checkpoint of changed weights, as a stage leaves it."""
    base = AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
    torch.manual_seed(0)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear")) if lora else base
    state = {name: each for name, each in model.named_parameters() if each.requires_grad or not lora}
    with torch.no_grad():
        for each in state.values():
            each.add_(torch.randn_like(each) * 0.05)
    save_weights(model, state, folder)
    name_base(folder, source or tiny.name, tiny.path, tiny.digest)
    add_companions(folder, tiny.path, tiny.digest, role or RoleConfig(sampling=SAMPLING), others=others)
    return folder


@pytest.mark.parametrize("lora", [False, True])
def test_a_checkpoint_is_opened_by_transformers_and_peft_with_equal_logits(tiny, tmp_path, lora):
    folder = checkpoint_of(tiny, tmp_path / "checkpoint", lora=lora)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]])
    if lora:
        opened = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny.path), folder)
    else:
        opened = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        expected = load_model(tiny.path, folder, dtype=torch.float32).eval()(ids).logits
        found = opened.eval()(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(tiny.path).eval()(ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (found - plain).abs().max() > 0.01
    assert list(ids[0]) == load_tokenizer(tiny.path).apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]


def test_the_generation_config_samples_as_the_role_does(tiny, tmp_path):
    found = GenerationConfig.from_pretrained(checkpoint_of(tiny, tmp_path / "checkpoint", lora=False))
    assert (found.do_sample, found.temperature, found.top_p, found.top_k) == (True, 0.7, 0.9, 11)
    assert found.max_new_tokens == 5
    assert load_tokenizer(tiny.path).eos_token_id in found.eos_token_id


@pytest.mark.parametrize("name", ["folder", "organization/model", "tiny"])
def test_an_adapter_names_its_base_without_a_path(tiny, tmp_path, name):
    source = str(tiny.path) if name == "folder" else name
    config = json.loads(
        (checkpoint_of(tiny, tmp_path / "c", lora=True, source=source) / "adapter_config.json").read_text()
    )
    told = config["base_model_name_or_path"], config["revision"]
    expected = {
        "folder": (tiny.path.name, f"sha256:{tiny.digest}"),
        "organization/model": ("organization/model", tiny.path.name),
        "tiny": ("tiny", None),
    }
    assert told == expected[name]


def test_no_file_tells_where_it_was_made(tiny, tmp_path):
    for lora in (False, True):
        folder = checkpoint_of(tiny, tmp_path / str(lora), lora=lora, source=str(tiny.path))
        for file in folder.iterdir():
            for place in (tmp_path, tiny.path.parent):
                assert str(place).encode() not in file.read_bytes(), file


def test_the_template_that_was_trained_with_is_the_one_that_is_written(tiny, tmp_path):
    own = "{# of training #}" + load_tokenizer(tiny.path).chat_template
    role = RoleConfig(sampling=SAMPLING, chat_template=own)
    folder = checkpoint_of(tiny, tmp_path / "checkpoint", lora=False, role=role)
    assert AutoTokenizer.from_pretrained(folder).chat_template == own
    plain = checkpoint_of(tiny, tmp_path / "plain", lora=False)
    assert AutoTokenizer.from_pretrained(plain).chat_template == load_tokenizer(tiny.path).chat_template


def test_a_tokenizer_takes_room_once_and_a_damaged_one_is_not_passed_on(tiny, tmp_path):
    one = checkpoint_of(tiny, tmp_path / "1", lora=True)
    two = checkpoint_of(tiny, tmp_path / "2", lora=True, others=[tmp_path / "gone", one])
    assert (one / "tokenizer.json").samefile(two / "tokenizer.json")
    content = (one / "tokenizer.json").read_bytes()
    damaged = shutil.copytree(one, tmp_path / "damaged")
    (damaged / "tokenizer.json").write_bytes(content.replace(b"0", b"1"))
    three = checkpoint_of(tiny, tmp_path / "3", lora=True, others=[damaged, two])
    assert (three / "tokenizer.json").samefile(one / "tokenizer.json")
    four = checkpoint_of(tiny, tmp_path / "4", lora=True, others=[damaged])
    assert (four / "tokenizer.json").read_bytes() == content


def test_a_file_system_without_links_gets_copies(tiny, tmp_path, monkeypatch):
    one = checkpoint_of(tiny, tmp_path / "1", lora=True)
    monkeypatch.setattr("crl.policies.companions.os.link", lambda *names: (_ for _ in ()).throw(PermissionError))
    two = checkpoint_of(tiny, tmp_path / "2", lora=True, others=[one])
    assert (two / "tokenizer.json").read_bytes() == (one / "tokenizer.json").read_bytes()
    assert not (two / "tokenizer.json").samefile(one / "tokenizer.json")


def test_the_digest_of_a_checkpoint_as_a_model_leaves_out_the_optimizer(tiny, tmp_path):
    folder = checkpoint_of(tiny, tmp_path / "checkpoint", lora=False)
    before = directory_digest(folder)
    Path(folder / "deepspeed").mkdir()
    (folder / "deepspeed" / "optimizer-rank00000.safetensors").write_bytes(b"state")
    (folder / "deepspeed" / "engine.json").write_text("{}")
    assert directory_digest(folder) == before


def test_the_sampling_of_a_role_does_not_go_into_the_weights_of_the_next_round(tiny, tmp_path):
    """Their digest would depend on it."""
    folder = checkpoint_of(tiny, tmp_path / "checkpoint", lora=False)
    trained = load_trainable(tiny.path, folder, lora=None, source="tiny", seed=0)
    assert trained.generation_config.temperature != SAMPLING.temperature
    assert not trained.generation_config.do_sample


@pytest.mark.parametrize("base", ["tiny", "folder", "beside"])
def test_an_adapter_is_a_model(tiny, tmp_path, base):
    """Merged into its base, which it names: one that is built in, by a path, or by name and digest."""
    folder = checkpoint_of(tiny, tmp_path / "adapter", lora=True, source=None if base == "tiny" else str(tiny.path))
    if base == "beside":
        shutil.copytree(tiny.path, tmp_path / tiny.path.name)
    elif base == "folder":
        named_in(folder, base_model_name_or_path=str(tiny.path), revision=None)
    check_model(str(folder))
    found = load_model(resolve_model(str(folder)).path, None, dtype=torch.float32)
    expected = dict(load_model(tiny.path, folder, dtype=torch.float32).named_parameters())
    assert all(torch.equal(each, expected[name]) for name, each in found.named_parameters())
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(str(folder)).path)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(folder).chat_template


def test_an_adapter_whose_base_is_not_there_or_another_is_refused(tiny, tmp_path):
    folder = checkpoint_of(tiny, tmp_path / "adapter", lora=True, source=str(tiny.path))
    with pytest.raises(BadInput, match=rf"trained from the folder '{tiny.path.name}'(?s:.*)base_model_name_or_path"):
        check_model(str(folder))
    other = Path(shutil.copytree(tiny.path, tmp_path / tiny.path.name))
    (other / "generation_config.json").write_text("{}")
    with pytest.raises(BadInput, match="not the one that the adapter was trained from"):
        resolve_model(str(folder))
    named_in(folder, base_model_name_or_path="nothing", revision=None)
    with pytest.raises(BadInput, match="Unknown model 'nothing'"):
        check_model(str(folder))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"no adapter_model.safetensors"):
        check_model(str(folder))


def named_in(folder, **changes):
    """Change an adapter's config as a user would."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
