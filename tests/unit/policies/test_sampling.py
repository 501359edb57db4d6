"""Drawing a token: inverse transform against plain numpy, cuts, edges."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import SamplingConfig
from crl.policies.sampling import draw

LARGEST = 1 - 2**-53


def _draw(logits, uniforms, **sampling):
    ids, logprobs = draw(
        torch.tensor(logits, dtype=torch.float32),
        torch.tensor(uniforms, dtype=torch.float64),
        SamplingConfig(**sampling),
    )
    return ids.tolist(), logprobs.tolist()


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 60),
    top_k=st.integers(0, 70),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_against_independent_arithmetic(seed, size, top_k, top_p, min_p, temperature):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (5, size)).astype(np.float32)
    uniforms = rng.random(5)
    ids, logprobs = _draw(logits, uniforms, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    for row in range(5):
        scaled = logits[row].astype(np.float64) / temperature
        full = np.exp(scaled - scaled.max())
        full /= full.sum()
        order = np.argsort(-full)
        likely = [index for index in order if full[index] >= min_p * full.max() * (1 - 1e-6)]
        kept = order[: min(top_k or size, len(likely))]
        mass = full[kept] / full[kept].sum()
        kept = kept[: 1 + int((np.cumsum(mass) < top_p).sum())]
        cut = np.zeros(size)
        cut[kept] = full[kept] / full[kept].sum()
        edges = np.cumsum(cut)
        assert abs(logprobs[row] - np.log(full[ids[row]])) < 1e-4
        assert cut[ids[row]] > 0
        if np.abs(edges - uniforms[row]).min() > 1e-5:  # not so near an edge that rounding decides
            assert ids[row] == int(np.searchsorted(edges, uniforms[row], side="right"))


def test_top_k_of_one_is_the_most_probable():
    assert _draw([[0.0, 5.0, 1.0]] * 3, [0.0, 0.5, LARGEST], top_k=1)[0] == [1, 1, 1]


def test_a_tiny_nucleus_keeps_the_most_probable():
    assert _draw([[0.0, 5.0, 1.0]] * 2, [0.0, LARGEST], top_p=1e-9)[0] == [1, 1]


def test_the_ends_of_the_unit_interval_hit_tokens_that_were_kept():
    logits = [[-float("inf"), 1.0, 0.5, -float("inf")]] * 2
    assert _draw(logits, [0.0, LARGEST])[0] == [1, 2]


def test_frequencies_are_the_probabilities():
    number = 20_000
    uniforms = np.random.default_rng(0).random(number)
    ids, _ = _draw([[0.0, 1.0, 2.0]] * number, uniforms)
    expected = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    assert np.abs(np.bincount(ids, minlength=3) / number - expected).max() < 0.012
