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

from crl.errors import BadInput
from crl.policies import sources
from crl.policies.language_model import load_model
from tests.hub import served
from tests.unit.policies.test_companions import checkpoint_of

ROOT = Path(__file__).parents[3]
ASK = """
import json, sys
from crl.errors import BadInput
from crl.policies import sources
from crl.policies.language_model import load_model
answers = []
for call, name in json.loads(sys.argv[1]):
    try:
        found = getattr(sources, call)(name)
        path = getattr(found, "path", found)
        answers.append([str(path), sources.pinned(name, path), getattr(found, "digest", "")])
    except BadInput as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


@pytest.fixture
def hub():
    with served() as made:
        yield made


@pytest.fixture
def ask(hub, tmp_path):
    """What a process that knows this hub says of models."""

    def asked(*calls, offline="0", **variables):
        environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": offline, "PYTHONPATH": str(ROOT)}
        environment |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **variables}
        environment.pop("HF_HUB_CACHE", None)
        run = [sys.executable, "-c", ASK, json.dumps(calls)]
        done = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
        return json.loads(done.stdout)

    return asked


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


def test_a_revision_is_a_branch_or_a_commit_and_is_pinned_to_the_commit(hub, ask, tiny, other):
    old, new = hub.push("a/b", tiny.path), hub.push("a/b", other, "next")
    main, branch, commit = ask(*[["resolve_model", name] for name in ("a/b", "a/b@next", f"a/b@{new}")])
    assert main[1:] == [f"a/b@{old}", tiny.digest]
    assert branch[:2] == commit[:2] and branch[1] == f"a/b@{new}" and branch[2] == sources.directory_digest(other)
    assert {file.name for file in Path(branch[0]).glob("*.safetensors")} == {
        each.name for each in other.glob("*.safetensors")
    }
    hub.push("a/b", other)
    (again,) = ask(["resolve_model", "a/b"])
    assert again == main, "a model does not change by itself"
    (offline,) = ask(["resolve_model", f"a/b@{old}"], offline="1")
    assert offline[2] == tiny.digest


def test_a_description_comes_without_weights(hub, ask, tiny):
    hub.push("a/b", tiny.path)
    (found,) = ask(["described", "a/b"])
    assert "tokenizer.json" in hub.asked and not any(name.endswith(".safetensors") for name in hub.asked)
    (whole,) = ask(["resolve_model", "a/b"])
    assert whole[2] == tiny.digest and whole[0] == found[0] and hub.asked.count("tokenizer.json") == 1


@pytest.mark.parametrize("method", ["bitsandbytes", "awq", "gptq", "compressed-tensors"])
def test_a_quantized_model_is_refused_before_its_weights_come(tiny, tmp_path, monkeypatch, method):
    folder = Path(shutil.copytree(tiny.path, tmp_path / "packed"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    with pytest.raises(BadInput, match=rf"quantized \({method}\)(?s:.*)quantized from"):
        sources.check_model(str(folder))


def test_what_cannot_be_had_is_told_apart(hub, ask, tiny, tmp_path):
    hub.push("a/gated", tiny.path)
    hub.gated.add("a/gated")
    hub.push("a/b", tiny.path)
    packed = Path(shutil.copytree(tiny.path, tmp_path / "packed"))
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": {"load_in_4bit": True}}))
    hub.push("a/packed", packed)
    names = ("a/gated", "a/b@nowhere", "a/nothing", "a/packed")
    gated, revision, missing, quantized = ask(*[["resolve_model", name] for name in names])
    assert "gated" in gated and f"{hub.address}/a/gated" in gated and "hf auth login" in gated
    assert "no revision 'nowhere'" in revision
    assert "not on the Hub, or it is private" in missing and "HF_TOKEN" in missing
    assert "quantized (bitsandbytes)" in quantized
    assert not any(name.endswith(".safetensors") for name in hub.asked)
    (opened,) = ask(["resolve_model", "a/gated"], HF_TOKEN="hf_someone")
    assert opened[2] == tiny.digest


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
