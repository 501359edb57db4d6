"""Sampling on a GPU: passes that are replayed as graphs say what teacher forcing says, turn after turn."""

from __future__ import annotations

import numpy as np
import pytest

from crl.config import SamplingConfig
from crl.policies.pass_graph import PassGraphs
from tests.marks import NEEDS_A_GPU
from tests.unit.policies.test_session import _largest_difference, _play, _prompts

pytestmark = [pytest.mark.gpu, NEEDS_A_GPU]


def test_replayed_passes_say_what_teacher_forcing_says(policy, monkeypatch):
    """Rows read, draw, leave and are followed by others."""
    replayed, logits = [], PassGraphs.logits

    def watched(graphs, rows, pasts, ids):
        found = logits(graphs, rows, pasts, ids)
        replayed.append(found is not None)
        return found

    monkeypatch.setattr(PassGraphs, "logits", watched)
    prompts = _prompts(np.random.default_rng(0), 4, 6)
    sampling = SamplingConfig(temperature=0.8, max_new_tokens=12)
    ids, logprobs = _play(policy, prompts, turns=5, sampling=sampling, leave=0.2, limit=16)
    assert sum(replayed) > 20 and not all(replayed)
    assert _largest_difference(policy, ids, logprobs, 0.8) < 1e-4
