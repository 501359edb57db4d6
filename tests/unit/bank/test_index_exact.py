"""The exact index: equal to brute force, whatever the ties, the batch and the hardware."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.index import ExactIndex, searcher
from tests.unit.bank.vectors import brute, unit


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 120),
    distinct=st.integers(1, 120),
    queries=st.integers(1, 4),
    count=st.integers(1, 130),
)
def test_equal_to_exhaustive_search_with_many_ties(seed, rows, distinct, queries, count):
    vectors = unit(seed, distinct)[np.random.default_rng(seed).integers(0, distinct, rows)]
    asked = unit(seed + 1, queries)
    for query, (found, cosines) in zip(asked, ExactIndex(vectors, gpu=False).nearest(asked, count), strict=True):
        assert found.tolist() == brute(vectors, query, count)
        assert (np.diff(cosines) <= 0).all()


def test_near_ties_that_float32_cannot_order():
    rng, base = np.random.default_rng(5), unit(5, 1, 384)[0]
    # Each component one rounding step up or down, or as it is: cosines differ by some 1e-8.
    steps = rng.integers(-1, 2, (400, 384)).astype(np.float32) * np.spacing(np.abs(base))
    vectors = base + steps
    found, _ = ExactIndex(vectors, gpu=False).nearest(base[None, :], 3)[0]
    exact = [math.fsum(float(a) * float(b) for a, b in zip(row, base, strict=True)) for row in vectors]
    assert found.tolist() == sorted(range(400), key=lambda row: -exact[row])[:3]


def test_a_result_depends_neither_on_the_other_rows_nor_on_the_other_queries():
    vectors, queries = unit(3, 200), unit(4, 40)
    every = ExactIndex(vectors, gpu=False).nearest(queries, 200)
    few = ExactIndex(vectors[:7], gpu=False)
    for query, (_, all_cosines), (rows, cosines) in zip(queries, every, few.nearest(queries, 7), strict=True):
        assert set(cosines) <= set(all_cosines)
        alone_rows, alone_cosines = few.nearest(query[None, :], 7)[0]
        assert rows.tolist() == alone_rows.tolist() == brute(vectors[:7], query, 7)
        assert cosines.tolist() == alone_cosines.tolist()


@pytest.mark.gpu
def test_the_gpu_index_equals_exact_search():
    if not searcher().gpu:
        pytest.skip("needs a GPU and a FAISS with GPU support")
    vectors = unit(1, 5000)[np.random.default_rng(0).integers(0, 5000, 20_000)]
    on_gpu, on_cpu = ExactIndex(vectors), ExactIndex(vectors, gpu=False)
    assert on_gpu.on_gpu and not on_cpu.on_gpu
    queries = unit(2, 20)
    for count in (1, 16, 3000):
        for found, expected in zip(on_gpu.nearest(queries, count), on_cpu.nearest(queries, count), strict=True):
            assert found[0].tolist() == expected[0].tolist() and found[1].tolist() == expected[1].tolist()
