"""Weights on their way into a server: the numbers of the loaded model, in files of which one is there at a time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import peft  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen2Config  # noqa: E402

from crl.config import DeepSpeedConfig, RoleConfig  # noqa: E402
from crl.learn.frozen import wide_in  # noqa: E402
from crl.learn.trainer import loads_divided  # noqa: E402
from crl.policies import handover  # noqa: E402
from crl.policies.handover import pieces  # noqa: E402
from crl.policies.language_model import load_model  # noqa: E402
from crl.policies.sources import numbers_by_type  # noqa: E402

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tied, in bfloat16."""
    folder = tmp_path_factory.mktemp("base")
    config = Qwen2Config(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def adapter(base: Path, folder: Path, **settings: Any) -> Path:
    """A LoRA adapter that changes something."""
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM", **settings)
    model = peft.get_peft_model(load_model(base, None, dtype=torch.float32), config)
    for name, each in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(each)
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def full(base: Path, folder: Path) -> Path:
    """Weights of its own, in float32, as an update writes them."""
    model = load_model(base, None, dtype=torch.float32)
    for each in model.parameters():
        each.data += 0.01 * torch.randn(each.shape, generator=torch.Generator().manual_seed(2))
    model.save_pretrained(folder)
    return folder


def taken(files: Any, folder: Path) -> dict[str, torch.Tensor]:
    """What a server copies."""
    found: dict[str, torch.Tensor] = {}
    with contextlib.closing(files) as given:
        for path in given:
            tensors = {name: each.clone() for name, each in load_file(path).items()}
            assert not tensors.keys() & found.keys()
            found |= tensors
    assert not [*folder.glob("*.safetensors")], "nothing is left"
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["base", "adapter", "full"])
def test_numbers_are_those_of_the_loaded_model(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: Any
) -> None:
    monkeypatch.setattr(handover, "PIECE", 2500)
    made = {"base": lambda *_: None, "adapter": adapter, "full": full}
    checkpoint = made[kind](base, tmp_path / "checkpoint")
    expected = dict(load_model(base, checkpoint, dtype=dtype).named_parameters())
    found = taken(pieces(base, checkpoint, tmp_path / "given", dtype=dtype), tmp_path / "given")
    assert found.pop(HEAD).equal(found[EMBEDDINGS]), "the head is a tensor of its own"
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name].to(dtype), each) for name, each in expected.items())
    wide = {name for name, each in found.items() if each.element_size() > dtype.itemsize}
    assert all(found[name].dim() == 1 for name in wide)
    plain = dict(load_model(base, None, dtype=dtype).named_parameters())
    assert (kind == "base") == all(torch.equal(found[name].to(dtype), each) for name, each in plain.items())


@pytest.mark.parametrize("size", ["1KB", "1GB"])
def test_what_a_directory_has_a_second_time_by_other_names_is_never_taken_for_weights(
    base: Path, tmp_path: Path, size: str
) -> None:
    """As checkouts of Mistral's have it."""
    twice = tmp_path / "twice"
    load_model(base, None, dtype=torch.bfloat16).save_pretrained(twice, max_shard_size=size)
    assert (size == "1KB") == (twice / "model.safetensors.index.json").is_file()
    save_file({"layers.0.attention.wq.weight": torch.ones(16, 16)}, twice / "consolidated.safetensors")
    checkpoint = adapter(base, tmp_path / "checkpoint")
    found, expected = (
        taken(pieces(each, checkpoint, tmp_path / "given", dtype=torch.float32), tmp_path / "given")
        for each in (twice, base)
    )
    assert found.keys() == expected.keys() and all(found[name].equal(expected[name]) for name in expected)
    assert numbers_by_type(twice).total() == numbers_by_type(base).total(), "nor counted"
    assert wide_in(twice) == {}, "nor read: its float32 matrix would stand for all"
    role = RoleConfig(model="tiny", deepspeed=DeepSpeedConfig(zero_stage=3, ranks=2))
    assert loads_divided(role, twice), "as narrow files are"


def test_one_file_is_there_at_a_time_and_says_whose_it_is(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "PIECE", 2500)
    largest = 64 * 16 * 2
    names = set()
    for number, path in enumerate(pieces(base, None, tmp_path, dtype=torch.bfloat16, untied=False, label="abc")):
        assert [*tmp_path.iterdir()] == [path]
        assert path.stat().st_size < 2500 + largest
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt", "piece": str(number), "weights": "abc"}
            names |= set(file.keys())
    assert number > 2 and HEAD not in names and EMBEDDINGS in names
    assert not [*tmp_path.iterdir()]


def test_one_that_is_broken_off_leaves_nothing(base: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyError), contextlib.closing(pieces(base, None, tmp_path, dtype=torch.bfloat16)) as files:
        next(files)
        assert [*tmp_path.iterdir()]
        raise KeyError
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("untied", [False, True])
def test_an_adapter_that_only_a_model_can_merge_is_merged_by_one(base: Path, tmp_path: Path, untied: bool) -> None:
    checkpoint = adapter(base, tmp_path / "checkpoint", use_rslora=True)
    expected = dict(load_model(base, checkpoint, dtype=torch.bfloat16).named_parameters())
    given = pieces(base, checkpoint, tmp_path / "given", dtype=torch.bfloat16, untied=untied)
    found = taken(given, tmp_path / "given")
    assert (HEAD in found) is untied and not [*(tmp_path / "given").iterdir()]
    assert all(torch.equal(found[name], each) for name, each in expected.items())
