"""Cuts on vLLM itself: its log-probabilities are of what they leave, and ratios go by those that the trainer stored.

Whole rounds of the same, with another server, are in tests/unit/engine/test_behavior_ratios.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from crl.config import ExtractorObjective, OptimizerConfig, RoleConfig, SamplingConfig
from crl.config.engines import ServerConfig, VllmEngine
from crl.engine.vllm_policy import VllmPolicy
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
from crl.records import SERVER, Generation
from crl.rounds.behavior import as_read
from crl.text.outputs import Output, Prompt, token_record
from tests.cutting import left_by
from tests.learning.test_vllm import model, prompts_of, pytestmark
from tests.ratios import logprobs_of

__all__ = ["model", "pytestmark"]
COUNT, TEMPERATURE = 24, 0.8
CUTS = [{"top_p": 0.9, "top_k": 20}, {"min_p": 0.2}, {"top_p": 0.6, "top_k": 50, "min_p": 0.02}]


@pytest.fixture(scope="module")
def policy(model: Path) -> Iterator[VllmPolicy]:
    role = RoleConfig(model=str(model), engine=VllmEngine(), context=256)
    made = VllmPolicy(role, model, None, threads=1, server=ServerConfig(start_seconds=3600), weights="a" * 64)
    yield made
    made.close()


def sampled(policy: VllmPolicy, model: Path, cut: dict[str, float]) -> list[Generation]:
    """Token records of what vLLM samples with a cut."""
    sampling = SamplingConfig.model_validate({"temperature": TEMPERATURE, "max_new_tokens": 12, **cut})
    prompts = prompts_of(COUNT)
    found = policy.open(prompts, range(COUNT)).sample(range(COUNT), sampling)
    return [
        token_record(
            Output(Prompt(f"p{row}", [], prompts[row], row), turn, ""), generation_id=f"g{row}", round=1,
            stage="distill", role="extractor", kind="distill", weights_digest="a" * 64, temperature=TEMPERATURE,
        )
        for row, turn in found.items()
    ]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_it_tells_log_probabilities_of_what_is_left_as_plain_arithmetic_cuts(
    policy: VllmPolicy, model: Path, cut: dict[str, float]
) -> None:
    judge, gaps, whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), [], []
    for record in sampled(policy, model, cut):
        assert record.logprobs_by == SERVER
        with torch.inference_mode():
            logits_TV = judge(torch.tensor([record.token_ids])).logits[0].double() / TEMPERATURE
        probs_TV = torch.softmax(logits_TV, -1).numpy()
        for place in np.flatnonzero(record.loss_mask).tolist():
            index, told = record.token_ids[place], record.logprobs[place]
            gaps.append(abs(told - np.log(max(left_by(probs_TV[place - 1], cut, None)[index], 1e-9))))
            whole.append(told - np.log(probs_TV[place - 1][index]))
    assert (np.array(gaps) < 1e-3).mean() > 0.99, "a token at the very edge of a cut may fall on the other side"
    assert np.mean(whole) > 0.05 and min(whole) > -1e-4
    print(f"{cut}: {len(gaps)} tokens, {np.mean(whole):.3f} nats above those of the whole distribution")


def test_ratios_are_1_when_it_has_sampled_and_later_against_what_was_stored(
    policy: VllmPolicy, model: Path, tmp_path: Path
) -> None:
    records = sampled(policy, model, CUTS[0])
    role = RoleConfig(model=str(model), optimizer=OptimizerConfig(learning_rate=3.0e-3))
    trainer, cispo = Trainer(role, model_path=model, checkpoint=None, threads=1), objectives(ExtractorObjective())
    read = [as_read(record, round=1) for record in records]
    stored, samples = trainer.read(read), []
    for place, each in enumerate(read):
        values = iter(stored[each.sample_id].logprobs)
        logprobs = [next(values) if mask else 0.0 for mask in each.loss_mask]
        samples.append(dataclasses.replace(each, objective="cispo", advantage=1.0 - place % 2 * 2, logprobs=logprobs))
    first = trainer.update(samples, cispo)
    trainer.save(tmp_path / "after")
    later = trainer.update(samples, cispo)
    trainer.dispose()

    def ratios(weights: Path, told: bool = False) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        judge = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
        pairs = zip(samples, records if told else samples, strict=True)
        found = [
            np.array(logprobs_of(judge, sample)) - np.array(by.logprobs)[np.flatnonzero(sample.loss_mask)]
            for sample, by in pairs
        ]
        return np.exp(np.concatenate(found))

    assert abs(first["ratio_max"] - 1) < 1e-3 and np.abs(ratios(model) - 1).max() < 1e-3
    assert ratios(model, told=True).mean() < 0.95, "by what the server told they would not be"
    expected = ratios(tmp_path / "after")
    assert later["ratio_mean"] == pytest.approx(expected.mean(), rel=1e-3) and np.abs(expected - 1).max() > 0.05
    assert later["ratio_max"] == pytest.approx(expected.max(), rel=1e-3)
