"""Models on the Hub: revisions, gates, shards, and what is looked at before weights are downloaded."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from crl.cli.doctor import experiment_findings
from crl.config import LoraConfig
from crl.errors import BadInput, HubUnreachable
from crl.policies import sources
from crl.policies.language_model import load_model
from crl.preflight import check_ready
from tests.hub import asked_here, served
from tests.unit.engine.harness import make_experiment
from tests.unit.policies.test_companions import checkpoint_of


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with served() as made:
        asked_here(made, tmp_path / "home", monkeypatch)
        yield made


def ask(call, name):
    """What a function of `sources` finds: the folder, the name that is pinned to a commit, and the digest."""
    found = getattr(sources, call)(name)
    path = getattr(found, "path", found)
    return [str(path), sources.pinned(name, path), getattr(found, "digest", "")]


@pytest.fixture
def other(tiny, tmp_path):
    """A tiny model with other weights, in several files."""
    folder = tmp_path / "other"
    model = AutoModelForCausalLM.from_pretrained(tiny.path)
    model.get_input_embeddings().weight.data += 1
    model.save_pretrained(folder, max_shard_size="200KB")
    for file in tiny.path.glob("*token*"):
        shutil.copyfile(file, folder / file.name)
    for file in tiny.path.glob("*.jinja"):
        shutil.copyfile(file, folder / file.name)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_a_revision_is_a_branch_or_a_commit_and_is_pinned_to_the_commit(hub, tiny, other, monkeypatch):
    old, new = hub.push("a/b", tiny.path), hub.push("a/b", other, "next")
    main, branch, commit = (ask("resolve_model", name) for name in ("a/b", "a/b@next", f"a/b@{new}"))
    assert main[1:] == [f"a/b@{old}", tiny.digest]
    assert branch[:2] == commit[:2] and branch[1] == f"a/b@{new}" and branch[2] == sources.directory_digest(other)
    assert {file.name for file in Path(branch[0]).glob("*.safetensors")} == {
        each.name for each in other.glob("*.safetensors")
    }
    hub.push("a/b", other)
    assert ask("resolve_model", "a/b") == main, "a model does not change by itself"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert ask("resolve_model", f"a/b@{old}")[2] == tiny.digest
    with pytest.raises(HubUnreachable, match="could not be downloaded"):
        ask("resolve_model", "a/other")


def test_a_description_comes_without_weights(hub, tiny):
    hub.push("a/b", tiny.path)
    found = ask("described", "a/b")
    assert "tokenizer.json" in hub.asked and not hub.asked_weights
    whole = ask("resolve_model", "a/b")
    assert whole[2] == tiny.digest and whole[0] == found[0] and hub.asked.count("tokenizer.json") == 1


@pytest.mark.parametrize("method", ["bitsandbytes", "awq", "gptq", "compressed-tensors"])
def test_a_quantized_model_is_refused_before_its_weights_come(tiny, tmp_path, monkeypatch, method):
    folder = Path(shutil.copytree(tiny.path, tmp_path / "packed"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    with pytest.raises(BadInput, match=rf"quantized \({method}\)(?s:.*)quantized from"):
        sources.check_model(str(folder))


def test_what_cannot_be_had_is_told_apart(hub, tiny, tmp_path, monkeypatch):
    hub.push("a/gated", tiny.path)
    hub.gated.add("a/gated")
    hub.push("a/b", tiny.path)
    packed = Path(shutil.copytree(tiny.path, tmp_path / "packed"))
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": {"load_in_4bit": True}}))
    hub.push("a/packed", packed)
    for name, said in (
        ("a/gated", rf"gated(?s:.*){hub.address}/a/gated(?s:.*)hf auth login"),
        ("a/b@nowhere", "no revision 'nowhere'"),
        ("a/nothing", "not on the Hub, or it is private(?s:.*)HF_TOKEN"),
        ("a/packed", r"quantized \(bitsandbytes\)"),
    ):
        with pytest.raises(BadInput, match=said):
            ask("resolve_model", name)
    assert not hub.asked_weights
    monkeypatch.setenv("HF_TOKEN", "hf_someone")
    assert ask("resolve_model", "a/gated")[2] == tiny.digest


def of(model, **actor):
    """An experiment whose actor has this model."""
    made = make_experiment(recipe={"kind": "complementary"})
    role = made.method.role("actor").model_copy(update={"model": model, **actor})
    method = made.method.model_copy(update={"roles": {**made.method.roles, "actor": role}})
    return made.model_copy(update={"method": method})


@pytest.mark.slow
def test_what_can_be_known_before_is_checked_before_weights_come(hub, tiny, tmp_path, monkeypatch):
    """Also the second time, when config and tokenizer are here."""
    monkeypatch.setattr("crl.preflight.probe.Comparison.checks", lambda self, **more: [])
    silent = Path(shutil.copytree(tiny.path, tmp_path / "silent", ignore=shutil.ignore_patterns("*.jinja")))
    config = json.loads((silent / "tokenizer_config.json").read_text())
    (silent / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": None}))
    sees, code = (Path(shutil.copytree(tiny.path, tmp_path / name)) for name in ("sees", "code"))
    config = json.loads((tiny.path / "config.json").read_text())
    (sees / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": config}))
    own = {"model_type": "theirs", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (code / "config.json").write_text(json.dumps(config | own))
    folders = {"a/silent": silent, "a/sees": sees, "a/code": code, "a/gated": tiny.path, "a/b": tiny.path}
    for name, folder in folders.items():
        hub.push(name, folder)
    hub.gated.add("a/gated")
    for experiment, said in (
        (of("a/silent"), "it has no chat template"),
        (of("a/sees"), "no causal language model of; its text model is of type llama"),
        (of("a/code"), "needs code that comes with it"),
        (of("a/b", context=1_000_000), "longer than the model"),
        (of("a/gated"), "gated"),
    ):
        for _ in range(2):
            with pytest.raises(BadInput, match=said):
                check_ready(experiment, tmp_path / "run", 1)
            findings = experiment_findings(experiment, 1)
            assert any(said in each.result for each in findings if each.mark == "missing"), said
            assert not hub.asked_weights
    adapted = of("a/b", lora=LoraConfig(target_modules=["q_proj"]))
    ready = {each.name: each for each in experiment_findings(adapted, 1)}
    assert ready["model, actor"].ok and "0.5 MB to download" in ready["model, actor"].result
    assert ready["template, actor"].ok and ready["update, actor"].ok and not hub.asked_weights
    check_ready(adapted, tmp_path / "run", 1)
    assert hub.asked_weights == ["model.safetensors"]
    with pytest.raises(BadInput, match="no module 'no_proj'"):
        check_ready(of("a/b", lora=LoraConfig(target_modules=["no_proj"])), tmp_path / "run", 1)


def test_a_shard_that_is_missing_is_named(other):
    sources.check_model(str(other))
    shard = sorted(other.glob("*.safetensors"))[-1]
    shard.unlink()
    with pytest.raises(BadInput, match=shard.name):
        sources.check_model(str(other))


def test_shards_give_the_model_that_one_file_gives(tiny, other, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(tiny.path, whole)
    tensors = {name: each for file in other.glob("*.safetensors") for name, each in load_file(file).items()}
    save_file(tensors, whole / "model.safetensors", {"format": "pt"})
    adapter = checkpoint_of(tiny, tmp_path / "adapter", lora=True)
    for checkpoint in (None, adapter):
        one, two = (
            dict(load_model(path, checkpoint, dtype=torch.float32).named_parameters()) for path in (whole, other)
        )
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


OPEN = """
import sys, torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer
model = AutoPeftModelForCausalLM.from_pretrained(sys.argv[1]).eval()
ids = torch.tensor([AutoTokenizer.from_pretrained(sys.argv[1])("go north")["input_ids"]])
with torch.no_grad():
    torch.save((ids, model(ids).logits), sys.argv[2])
"""


@pytest.mark.slow
def test_an_adapter_on_a_model_of_the_hub_is_opened_by_its_folder_alone(hub, tiny, other, tmp_path):
    commit = hub.push("a/b", tiny.path)
    hub.push("a/b", other)  # the branch has moved on since
    snapshot = Path(shutil.copytree(tiny.path, tmp_path / commit))
    source = dataclasses.replace(tiny, path=snapshot)
    folder = checkpoint_of(source, tmp_path / "adapter", lora=True, source="a/b")
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    run = [sys.executable, "-c", OPEN, str(folder), str(tmp_path / "logits")]
    subprocess.run(run, check=True, env=environment, capture_output=True)
    ids, found = torch.load(tmp_path / "logits")
    with torch.no_grad():
        expected = load_model(tiny.path, folder, dtype=torch.float32).eval()(ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
