"""Every small text architecture of the installed transformers: computed right, or refused; none wrong, none crashing.

What is accepted makes an update and writes a checkpoint, which is read as sampling reads it and by transformers alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from crl.config import ActorObjective, LoraConfig, OptimizerConfig, RoleConfig
from crl.engine.probe import MOST_NATS, Question, answer
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
from crl.policies import resolve_model
from crl.policies.language_model import load_model
from crl.policies.sampling import sequence_logprobs
from crl.records import Sample
from tests.architectures import kinds, parameters, write_small

pytestmark = pytest.mark.slow
CONTEXT, LARGEST = 128, 3e7
ROWS = [[7, 9, 30, 41, 5, 77, 80, 12], [7, 9, 30, 41, 6, 90, 14, 15, 70, 3]]
LORA = LoraConfig(r=4)
NOISE = {
    "attention_dropout": 0.2, "residual_dropout": 0.2, "embedding_dropout": 0.2, "attn_pdrop": 0.2, "resid_pdrop": 0.2,
    "embd_pdrop": 0.2, "dropout": 0.2, "hidden_dropout": 0.2, "layerdrop": 0.2, "router_jitter_noise": 0.2,
    "input_jitter_noise": 0.2, "activation_dropout": 0.2, "hidden_dropout_prob": 0.2,
}  # fmt: skip
ACCEPTED_BEFORE = 75
_accepted: set[str] = set()


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("kind", kinds())
def test_an_architecture(kind: str, lora: LoraConfig | None, tmp_path: Path) -> None:
    base, checkpoint = tmp_path / "base", tmp_path / "checkpoint"
    try:
        if parameters(kind, 512) > LARGEST:
            pytest.skip("its smallest is large: other parts than text")
        write_small(kind, base, resolve_model("tiny").path, 512, **NOISE)
    except Exception as error:
        pytest.skip(f"not made by these sizes: {type(error).__name__}: {str(error)[:200]}")
    told = None if lora is None else lora.model_dump(mode="json")
    verdict = answer(Question(str(base), CONTEXT, told, sampled=True, trained=True))
    if verdict.problem is not None:
        return
    _accepted.add(kind)
    role = RoleConfig(model=str(base), context=CONTEXT, lora=lora, optimizer=OptimizerConfig(learning_rate=1e-2))
    trainer = Trainer(role, model_path=base, checkpoint=None, threads=1)
    try:
        assert trainer.update(samples(), objectives(ActorObjective()))["update_norm"] > 0
        trainer.save(checkpoint)
        weights = trainer.weights()
    finally:
        trainer.dispose()
    before, read = plain(base), load_model(base, checkpoint, dtype=torch.float32).eval()
    start = logprobs(before)
    if lora is None:
        alone = plain(checkpoint)
        missing = before.load_state_dict(weights, strict=False).missing_keys
        assert set(missing) <= set(before._tied_weights_keys or ()) | {"lm_head.weight"}, missing
        assert apart(logprobs(before), logprobs(alone)) < MOST_NATS, "what the trainer held is what it wrote"
    else:
        alone = PeftModel.from_pretrained(before, checkpoint).eval()
    found = logprobs(alone)
    assert apart(found, logprobs(read)) < MOST_NATS, "as transformers reads it"
    assert apart(found, start) > 10 * MOST_NATS, "the update changed something"


def test_no_fewer_are_accepted() -> None:
    """Behind the others, in one process with them."""
    if len(_accepted) < 2:
        pytest.skip("the architectures were not tried in this process")
    assert len(_accepted) >= ACCEPTED_BEFORE, sorted(_accepted)


def samples() -> list[Sample]:
    return [
        Sample(
            sample_id=str(number), round=1, role="actor", objective="grpo", source="0001/collect",
            generation_id=str(number), reward=1.0, advantage=1.0 - 2 * number, weight=1.0, temperature=1.0,
            token_ids=row, loss_mask=[0] * 4 + [1] * (len(row) - 4), logprobs=[0.0] * 4 + [-6.0] * (len(row) - 4),
        )
        for number, row in enumerate(ROWS)
    ]  # fmt: skip


def plain(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logprobs(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return torch.cat([torch.as_tensor(each) for each in sequence_logprobs(model, ROWS, 1.0, batch=1)])


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
