"""Weights in fp8 and mxfp4 are the numbers that they stand for, wherever a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from crl.config import LoraConfig
from crl.config.models import pretrained
from crl.engine.probe import Question, answer
from crl.learn.scoring import load_trainable
from crl.policies import check_model, resolve_model
from crl.policies.language_model import load_model
from tests.architectures import write_small
from tests.learning import matrix
from tests.quantized import pack_fp8, pack_mxfp4

Pack = Callable[[Path], dict[str, torch.Tensor]]
IDS = torch.tensor([[5, 9, 30, 41, 7]])
LORA = LoraConfig(r=2)


@pytest.mark.parametrize(("kind", "pack"), [("llama", pack_fp8), ("gpt_oss", pack_mxfp4)])
def test_packed_weights_are_dequantized(kind: str, pack: Pack, tmp_path: Path) -> None:
    write_small(kind, tmp_path, resolve_model("tiny").path, 512)
    exact = pack(tmp_path)
    check_model(str(tmp_path))
    sampled = load_model(tmp_path, None, dtype=torch.float32).eval()
    assert all(torch.equal(each, exact[name].float()) for name, each in sampled.named_parameters() if name in exact)
    with torch.no_grad():
        expected = sampled(input_ids=IDS).logits
        for lora in (None, LORA):
            trained = load_trainable(tmp_path, None, lora=lora, source="packed", seed=0)
            torch.testing.assert_close(trained(input_ids=IDS).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize(("kind", "pack"), [("qwen3_moe", pack_fp8), ("llama", pack_fp8), ("gpt_oss", pack_mxfp4)])
def test_they_are_sampled_trained_saved_as_plain_numbers_and_resumed(
    kind: str, pack: Pack, lora: LoraConfig | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small(kind, tmp_path / "base", resolve_model("tiny").path, 512)
    pack(tmp_path / "base")
    asked = None if lora is None else lora.model_dump(mode="json")
    verdict = answer(Question(str(tmp_path / "base"), 128, asked, sampled=True, trained=True))
    assert verdict.problem is None and verdict.update is not None, verdict

    def plain(path: Path) -> Any:
        return pretrained(AutoModelForCausalLM, path, dtype=torch.float32).eval()

    monkeypatch.setattr(matrix, "plain", plain)
    _, rows, apart = matrix.sampled(tmp_path / "base")
    assert apart < matrix.MOST_NATS
    assert matrix.updated(tmp_path / "base", tmp_path / "trained", rows, lora) == verdict.update
    config = tmp_path / "trained/config.json"
    assert lora is not None or "quantization_config" not in json.loads(config.read_text(encoding="utf-8"))


def test_a_base_with_some_float32_tensors_is_read_without_rounding(tmp_path: Path) -> None:
    """Norms are often kept so; its matrices stay narrow."""
    write_small("llama", tmp_path, resolve_model("tiny").path, 512)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"float32"', '"bfloat16"'))
    file = tmp_path / "model.safetensors"
    mixed = {name: each + 0.001 if each.dim() == 1 else each.bfloat16() for name, each in load_file(file).items()}
    save_file(mixed, file, {"format": "pt"})
    trained = load_trainable(tmp_path, None, lora=LORA, source="mixed", seed=0)
    assert trained.model.model.layers[0].mlp.down_proj.base_layer.weight.dtype == torch.bfloat16
    with torch.no_grad():
        expected = load_model(tmp_path, None, dtype=torch.float32).eval()(input_ids=IDS).logits
        torch.testing.assert_close(trained(input_ids=IDS).logits, expected, rtol=0, atol=1e-5)
