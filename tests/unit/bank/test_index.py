"""The exact index: equal to brute force, whatever the ties; a cache that is never trusted blindly."""

import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.index import KEPT, ExactIndex, cached_index, embeddings_digest, gpu_available


def unit(seed: int, rows: int, dimension: int = 16) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def brute(vectors, query, count):
    cosines = [sum(float(a) * float(b) for a, b in zip(row, query, strict=True)) for row in vectors]
    rounded = [round(value, 12) for value in cosines]
    return sorted(range(len(vectors)), key=lambda row: (-rounded[row], row))[:count]


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 120),
    distinct=st.integers(1, 120),
    count=st.integers(1, 130),
)
def test_equal_to_exhaustive_search_with_many_ties(seed, rows, distinct, count):
    vectors = unit(seed, distinct)[np.random.default_rng(seed).integers(0, distinct, rows)]
    query = unit(seed + 1, 1)[0]
    found, cosines = ExactIndex(vectors, gpu=False).nearest(query, count)
    assert found.tolist() == brute(vectors, query, count)
    assert (np.diff(cosines) <= 0).all()


def test_near_ties_that_float32_cannot_order():
    rng, base = np.random.default_rng(5), unit(5, 1, 384)[0]
    # Each component one rounding step up or down, or as it is: cosines differ by some 1e-8.
    steps = rng.integers(-1, 2, (400, 384)).astype(np.float32) * np.spacing(np.abs(base))
    vectors = base + steps
    found, _ = ExactIndex(vectors, gpu=False).nearest(base, 3)
    exact = [math.fsum(float(a) * float(b) for a, b in zip(row, base, strict=True)) for row in vectors]
    assert found.tolist() == sorted(range(400), key=lambda row: -exact[row])[:3]


def test_a_result_does_not_depend_on_the_other_rows():
    vectors, query = unit(3, 200), unit(4, 1)[0]
    _, all_cosines = ExactIndex(vectors, gpu=False).nearest(query, 200)
    rows, cosines = ExactIndex(vectors[:7], gpu=False).nearest(query, 7)
    assert set(cosines) <= set(all_cosines)
    assert rows.tolist() == brute(vectors[:7], query, 7)


def test_a_cached_index_is_used_and_equal(tmp_path, monkeypatch):
    vectors, query = unit(1, 40), unit(2, 1)[0]
    key = embeddings_digest(vectors)
    made = cached_index(tmp_path, key, vectors, gpu=False).nearest(query, 5)
    monkeypatch.setattr("crl.bank.index.build_flat", lambda vectors: pytest.fail("made again"))
    read = cached_index(tmp_path, key, vectors, gpu=False).nearest(query, 5)
    assert made[0].tolist() == read[0].tolist() and made[1].tolist() == read[1].tolist()
    assert sorted(path.name for path in (tmp_path / key).iterdir()) == ["index.faiss", "index.json"]


def _cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["index.faiss", "index.json"])
@pytest.mark.parametrize("damage", [_cut, _flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_cache_is_made_again(tmp_path, name, damage):
    vectors, query = unit(1, 40), unit(2, 1)[0]
    key = embeddings_digest(vectors)
    expected = cached_index(tmp_path, key, vectors, gpu=False).nearest(query, 5)[0].tolist()
    whole = (tmp_path / key / name).read_bytes()
    damage(tmp_path / key / name)
    assert cached_index(tmp_path, key, vectors, gpu=False).nearest(query, 5)[0].tolist() == expected
    assert (tmp_path / key / name).read_bytes() == whole


def test_an_intact_cache_of_other_embeddings_is_not_believed(tmp_path):
    vectors, others, query = unit(1, 40), unit(9, 40), unit(2, 1)[0]
    cached_index(tmp_path, "key", others, gpu=False)
    assert cached_index(tmp_path, "key", vectors, gpu=False).nearest(query, 5)[0].tolist() == brute(vectors, query, 5)
    assert json.loads((tmp_path / "key" / "index.json").read_text())["embeddings_sha256"] == embeddings_digest(vectors)


def test_the_cache_keeps_the_newest_indexes_and_what_is_not_one(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("kept")
    keys = []
    for number in range(KEPT + 3):
        vectors = unit(number, 4)
        keys.append(embeddings_digest(vectors))
        cached_index(tmp_path, keys[-1], vectors, gpu=False)
        beside = tmp_path / keys[-1] / "index.json"
        os.utime(beside, ns=(number, number))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"other", *keys[-KEPT:]}


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("in the way")
    vectors, query = unit(1, 10), unit(2, 1)[0]
    found = cached_index(tmp_path / "file", "key", vectors, gpu=False).nearest(query, 3)[0].tolist()
    assert found == brute(vectors, query, 3)


@pytest.mark.gpu
def test_the_gpu_index_equals_exact_search():
    if not gpu_available():
        pytest.skip("needs a GPU and a FAISS with GPU support")
    vectors = unit(1, 5000)[np.random.default_rng(0).integers(0, 5000, 20_000)]
    on_gpu, on_cpu = ExactIndex(vectors), ExactIndex(vectors, gpu=False)
    assert on_gpu.on_gpu and not on_cpu.on_gpu
    for query in unit(2, 20):
        for count in (1, 16, 3000):
            assert on_gpu.nearest(query, count)[0].tolist() == on_cpu.nearest(query, count)[0].tolist()
