"""What the updates of a run compare with: ratios of its recorded samples, by transformers alone and the stored rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crl.policies.sources import resolve_model
from crl.records import BehaviorLogprobs, Metric, Sample, Weights
from crl.run.directory import RunDirectory
from tests.learning.harness import rows


def behavior(run: RunDirectory, role: str) -> dict[str, list[float]]:
    """What the stages of a role's weights stored, by token record."""
    numbers = [number for number in run.rounds() if run.is_complete(number, f"behavior_logprobs_{role}")]
    return {
        row.generation_id: row.logprobs for row in rows(run, BehaviorLogprobs, f"behavior_logprobs_{role}", numbers)
    }


def samples(run: RunDirectory, role: str, number: int) -> list[Sample]:
    """What the update of a role's weights was to train in a round."""
    return [each for each in rows(run, Sample, "credit", [number]) if each.role == role]


def metrics(run: RunDirectory, stage: str, number: int) -> dict[str, float]:
    return {row.name: row.value for row in rows(run, Metric, stage, [number])}


def before(run: RunDirectory, role: str, number: int) -> Weights:
    """The weights that a role has when a round begins."""
    stages = [f"update_{role}"] if number > 1 else [f"warm_start_{role}", "initialize"]
    stage = next(each for each in stages if run.is_complete(number - 1, each))
    return next(row for row in rows(run, Weights, stage, [number - 1]) if row.role == role)


def ratios(run: RunDirectory, role: str, number: int) -> NDArray[np.float64]:
    """Of every token that the update of a round trains: its probability under the weights that the update begins with,
    over the stored one."""
    stored, model = behavior(run, role), model_of(run, before(run, role, number))
    found: list[float] = []
    for sample in samples(run, role, number):
        if sample.advantage:
            own = [value for value, mask in zip(stored[sample.generation_id], sample.loss_mask, strict=True) if mask]
            found += np.exp(np.array(logprobs_of(model, sample)) - own).tolist()
    return np.array(found)


def model_of(run: RunDirectory, row: Weights) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    named = run.method.role(row.role).model
    path = resolve_model(named).path if row.checkpoint is None else run.path / row.checkpoint
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logprobs_of(model: Any, sample: Sample) -> list[float]:
    """Log-probabilities of the trained tokens of a sample, in one pass, before any cut."""
    import torch

    with torch.inference_mode():
        logits_TV = model(torch.tensor([sample.token_ids])).logits[0].double() / sample.temperature
    logprobs_TV, choices = torch.log_softmax(logits_TV, -1), iter(sample.choices)
    found = []
    for place in np.flatnonzero(sample.loss_mask).tolist():
        over = float(logprobs_TV[place - 1, next(choices)].logsumexp(0)) if sample.choices else 0.0
        found.append(float(logprobs_TV[place - 1, sample.token_ids[place]]) - over)
    return found


def check_round(run: RunDirectory, role: str, number: int) -> bool:
    """Hold the update of a round against these ratios: all are 1 where the weights that sampled are those that it
    begins with, and else what arithmetic says. Whether it took a step on what other weights sampled."""
    told, batch = metrics(run, f"update_{role}", number), samples(run, role, number)
    if not told.get("stepped"):
        return False
    expected = ratios(run, role, number)
    assert abs(told["ratio_mean"] / expected.mean() - 1) < 1e-3 and abs(told["ratio_max"] / expected.max() - 1) < 1e-3
    now = before(run, role, number).weights_digest
    if all(before(run, role, int(each.source[:4])).weights_digest == now for each in batch):
        assert np.abs(expected - 1).max() < 1e-3 and abs(told["ratio_max"] - 1) < 1e-3
        return False
    assert np.abs(expected - 1).max() > 0.02, "the weights have moved since"
    return True
