"""top_p and top_k on vLLM itself: the stored behavior log-probabilities are of the whole distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crl.config.load import parse_experiment
from crl.records import SERVER, Generation
from tests.learning.harness import rows, train
from tests.learning.test_vllm import model, pytestmark, settings
from tests.ratios import behavior, check_round, metrics

__all__ = ["model", "pytestmark"]
ROUNDS = 3
SAMPLING = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01}


def test_ratios_are_against_the_stored_values_in_the_round_that_sampled_and_later(model: Path, tmp_path: Path) -> None:
    data = settings(model)
    for role in data["method"]["roles"].values():
        role["sampling"] |= SAMPLING
    run = train(parse_experiment(data, base=Path(), where="test"), tmp_path, ROUNDS)
    for role, stage in (("actor", "collect"), ("extractor", "distill")):
        told, stored = rows(run, Generation, stage, range(1, ROUNDS + 1)), behavior(run, role)
        assert {row.logprobs_by for row in told} == {SERVER}
        gaps = np.array(
            [
                each - own
                for row in told
                for each, own, mask in zip(row.logprobs, stored[row.generation_id], row.loss_mask, strict=True)
                if mask
            ]
        )
        assert gaps.min() > -1e-4, "vLLM's are of what its cut left: never below"
        assert gaps.mean() > 0.005, "something was cut"
        print(f"{role}: {len(gaps)} tokens, cut by {gaps.mean():.3f} nats on average, at most {gaps.max():.3f}")
    stepped = [number for number in range(1, ROUNDS + 1) if metrics(run, "update_actor", number)["stepped"]]
    assert stepped and not any(check_round(run, "actor", number) for number in stepped)
    assert any(check_round(run, "extractor", number) for number in range(1, ROUNDS + 1))
