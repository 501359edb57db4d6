"""Seeds as numbers draw the same as seeds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.run.seeds import number_of, seed_for


@settings(deadline=None)
@given(
    experiment=st.integers(0, 2**32 - 1),
    parts=st.lists(st.integers(0, 2**40) | st.text(max_size=12), max_size=4),
)
def test_the_number_of_a_seed_draws_as_the_seed(experiment, parts):
    seed = seed_for(experiment, *parts, "e1")
    drawn = np.random.default_rng(seed).random(5)
    assert np.array_equal(np.random.default_rng(number_of(seed)).random(5), drawn)
    assert number_of(np.random.SeedSequence(experiment)) == experiment
