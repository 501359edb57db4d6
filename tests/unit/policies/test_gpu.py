"""Sampling on a GPU: passes that are replayed as graphs say what teacher forcing says, turn after turn."""

from __future__ import annotations

import numpy as np
import pytest

from crl.config import SamplingConfig
from crl.policies.pass_graph import PassGraphs
from crl.policies.scoring import sequence_logprobs

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU on this machine")


def test_replayed_passes_say_what_teacher_forcing_says(policy, monkeypatch):
    replayed, logits = [], PassGraphs.logits

    def watched(graphs, rows, pasts, ids):
        found = logits(graphs, rows, pasts, ids)
        replayed.append(found is not None)
        return found

    monkeypatch.setattr(PassGraphs, "logits", watched)
    rng = np.random.default_rng(0)
    base = rng.integers(5, 512, 40).tolist()
    prompts = [base + rng.integers(5, 512, 1 + row).tolist() for row in range(24)]
    sampling = SamplingConfig(temperature=0.8, max_new_tokens=12)
    session = policy.open(prompts, range(24), 16)
    ids, logprobs, turns = [list(prompt) for prompt in prompts], [[np.nan] * len(each) for each in prompts], [0] * 24
    session.begin(range(24), sampling)
    while ended := session.advance():
        for row, sampled in ended.items():
            ids[row] += sampled.token_ids
            logprobs[row] += sampled.logprobs
            turns[row] += 1
            if turns[row] == 1 + row % 5:  # rows leave at different times, and others take their places
                session.drop([row])
                continue
            piece = rng.integers(5, 512, 7).tolist()
            session.extend({row: piece})
            ids[row] += piece
            logprobs[row] += [np.nan] * 7
            session.begin([row], sampling)
    assert sum(replayed) > 20 and not all(replayed)
    scored = sequence_logprobs(policy.model, ids, 0.8, batch=4)
    differences = [np.abs(np.array(a) - b)[~np.isnan(a)] for a, b in zip(logprobs, scored, strict=True)]
    assert np.concatenate(differences).max() < 1e-4
