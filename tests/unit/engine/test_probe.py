"""What the comparison with transformers finds, in small random models of many architectures."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crl.engine.probe import MOST_NATS, Question, Verdict, answer
from crl.policies import resolve_model
from tests.architectures import write_small

slow = pytest.mark.slow
LORA = {"r": 4, "lora_alpha": 32.0, "target_modules": "all-linear"}


@pytest.fixture
def small(tmp_path: Path) -> Any:
    tiny = resolve_model("tiny").path

    def written(kind: str, context: int = 128, rows: int = 512, **more: Any) -> Question:
        write_small(kind, tmp_path, tiny, rows, **more)
        return Question(str(tmp_path), context, None, sampled=True, trained=True)

    return written


def right(verdict: Verdict) -> bool:
    return verdict.problem is None and max(verdict.nats.values()) < MOST_NATS / 20 and (verdict.cosine or 0) > 0.999999


@pytest.mark.parametrize(
    ("kind", "lora"),
    [
        ("qwen3", None),
        ("deepseek_v3", LORA),  # values are narrower than keys
        pytest.param("qwen2_moe", None, marks=pytest.mark.slow),  # makes a mask that no layer uses
    ],
)
def test_what_is_computed_as_transformers_computes_it_is_measured_so(small: Any, kind: str, lora: Any) -> None:
    verdict = answer(replace(small(kind), lora=lora))
    assert right(verdict), verdict
    assert set(verdict.nats) == {"sampling", "update", "repeat"} | ({"adapter"} if lora else set())


NOISE = {
    "attention_dropout": 0.3, "residual_dropout": 0.3, "embedding_dropout": 0.3, "attn_pdrop": 0.3, "resid_pdrop": 0.3,
    "embd_pdrop": 0.3, "dropout": 0.3, "layerdrop": 0.3, "router_jitter_noise": 0.3, "input_jitter_noise": 0.3,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["starcoder2", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gpt2", "opt", "phimoe"))]
)
def test_an_update_draws_no_noise(small: Any, kind: str) -> None:
    verdict = answer(small(kind, **NOISE))
    assert right(verdict) and verdict.nats["repeat"] == 0, verdict


@pytest.mark.parametrize(
    ("kind", "more", "sampling", "update", "why"),
    [
        ("stablelm", {}, "padded", "padded", "do not hand their attention the arguments"),
        ("mpt", {}, "padded", "padded", "its attention cannot be set"),
        ("gpt_oss", {"sliding_window": 8}, "padded", "padded", "layers that see 8 tokens"),
        ("mistral", {"sliding_window": 64}, "padded", "padded", "layers that see 64 tokens"),
        pytest.param("doge", {}, "padded", "padded", "a mask of the model's own", marks=slow),
        pytest.param("diffllama", {}, "padded", "padded", "layer 0: 2", marks=slow),
        pytest.param("falcon", {}, "padded", "padded", "its attention cannot be set", marks=slow),
        pytest.param("modernbert-decoder", {}, "padded", "padded", "layers that see 64 tokens", marks=slow),
        pytest.param("mamba", {}, "tokens", "padded", "not enough values", marks=slow),
    ],
)
def test_what_packed_passes_would_compute_wrongly_is_computed_in_another_way(
    small: Any, kind: str, more: Any, sampling: str, update: str, why: str
) -> None:
    verdict = answer(small(kind, **more))
    assert right(verdict), verdict
    assert (verdict.sampling, verdict.update) == (sampling, update) and why in verdict.instead["sampling"], verdict


def test_a_model_that_looks_ahead_is_named(small: Any) -> None:
    verdict = answer(small("bert"))
    assert verdict.problem is not None and "no way of sampling computes what transformers computes" in verdict.problem


def test_a_gradient_that_differs_is_that_of_another_way(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities alone do not tell: here packed attention gives keys no gradient."""
    from crl.learn import tree_attention

    attend = tree_attention.tree_attention

    def halted(module: Any, query: Any, key: Any, *rest: Any, **more: Any) -> Any:
        return attend(module, query, key.detach(), *rest, **more)

    monkeypatch.setattr(tree_attention, "tree_attention", halted)
    verdict = answer(small("llama"))
    assert right(verdict) and verdict.update == "padded" and "cosine" in verdict.instead["update"], verdict


def test_a_window_that_holds_the_context_is_none(small: Any) -> None:
    assert right(answer(small("mistral", sliding_window=128, context=128)))


def test_rows_without_a_token_are_left_out_of_all(small: Any) -> None:
    assert right(answer(small("llama", rows=640)))


@pytest.mark.slow
def test_an_adapter_that_is_lost_when_it_is_read_is_named(small: Any) -> None:
    question = small("laguna")
    assert right(answer(question))
    verdict = answer(replace(question, lora=LORA))
    assert verdict.problem is not None and "an adapter that is read back" in verdict.problem


def test_what_is_only_updated_or_only_sampled_is_compared_by_itself(small: Any) -> None:
    question = small("llama")
    assert set(answer(replace(question, sampled=False)).nats) == {"update", "repeat"}
    verdict = answer(replace(question, trained=False))
    assert set(verdict.nats) == {"sampling"} and verdict.cosine is None


def test_numbers_that_are_none_are_wrong(small: Any) -> None:
    from safetensors.torch import load_file, save_file

    question = small("llama")
    path = Path(question.path) / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("nan"))
    save_file(weights, path, metadata={"format": "pt"})
    assert answer(question).problem is not None


@pytest.mark.parametrize("kind", ["deepseek_v3", pytest.param("afmoe", marks=pytest.mark.slow)])
def test_an_update_in_bfloat16_is_computed_to_its_end(small: Any, kind: str) -> None:
    """Values that are narrower than keys; a model that takes a view of what attention returns."""
    verdict = answer(replace(small(kind), autocast="bfloat16"))
    assert verdict.problem is None and "bfloat16" in verdict.nats, verdict


def test_a_model_whose_layers_cannot_be_computed_twice_is_named(small: Any) -> None:
    assert right(answer(replace(small("llama"), gradient_checkpointing=True)))
    verdict = answer(replace(small("ctrl"), gradient_checkpointing=True))
    assert verdict.problem is not None and "checkpointing" in verdict.problem and not verdict.sure


def test_an_adapter_of_a_large_scale_is_moved_as_little(small: Any) -> None:
    verdict = answer(replace(small("granitemoe", num_hidden_layers=4), lora={**LORA, "r": 16, "lora_alpha": 512.0}))
    assert right(verdict), verdict


def test_a_short_context_is_not_left(small: Any) -> None:
    assert right(answer(small("mistral", sliding_window=32, context=32)))


def test_one_copy_is_in_memory_at_one_time(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import crl.engine.probe as probe

    made, alive = list[Any](), list[int]()
    for name in ("load_model", "load_trainable", "pretrained"):
        load = getattr(probe, name)

        def watched(*args: Any, load: Any = load, **more: Any) -> Any:
            gc.collect()
            alive.append(sum(each() is not None for each in made))
            model = load(*args, **more)
            if isinstance(model, torch.nn.Module):
                made.append(weakref.ref(model))
            return model

        monkeypatch.setattr(probe, name, watched)
    assert right(answer(replace(small("llama"), lora=LORA)))
    assert len(made) == 4 and set(alive) == {0}


def test_a_damaged_file_is_named(small: Any) -> None:
    question = small("llama")
    path = Path(question.path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    verdict = answer(question)
    assert verdict.problem is not None and "model.safetensors cannot be read" in verdict.problem and verdict.sure
