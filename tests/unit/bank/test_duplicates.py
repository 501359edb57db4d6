"""Near-duplicates: exactly the groups that comparing all with all one by one finds, whatever the blocks and order."""

from __future__ import annotations

import numpy as np
import pytest

from crl.bank import duplicates
from crl.bank.duplicates import groups
from crl.bank.index import similarities


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def clustered(total, dimension, topics, seed, spread=0.35):
    """Vectors around centers, some of them very close, some equal."""
    random = np.random.default_rng(seed)
    centers = unit(random.standard_normal((topics, dimension)))
    away = unit(random.standard_normal((total, dimension))) * random.choice([0.0, 0.1, spread, 1.0], (total, 1))
    return unit(centers[random.integers(topics, size=total)] + away)


def all_with_all(vectors, threshold):
    """{(i, j): cosine}, one row after the other."""
    found = {}
    for row in range(len(vectors)):
        cosines = similarities(vectors[row + 1 :], vectors[row])
        found |= {(row, row + 1 + int(at)): float(cosines[at]) for at in np.flatnonzero(cosines >= threshold)}
    return found


def components(total, pairs):
    root = list(range(total))
    for _ in range(total):
        before = list(root)
        for first, second in pairs:
            root[first] = root[second] = min(root[first], root[second])
        if root == before:
            return root
    return root


@pytest.mark.parametrize(("total", "dimension", "topics", "threshold", "sizes"), [
    (900, 96, 40, 0.9, {"_ROWS": 16, "_COLUMNS": 64}), (900, 96, 40, 0.9, {"_ROWS": 64, "_COLUMNS": 16}),
    (900, 96, 8, 0.95, {"_ROWS": 100, "_PAIRS": 7}), (900, 3, 10, 0.999, {"_ROWS": 100, "_COLUMNS": 100}),
    (2500, 80, 60, 0.9, {}),
])  # fmt: skip
def test_exactly_the_groups_of_all_with_all(total, dimension, topics, threshold, sizes, monkeypatch):
    for name, value in sizes.items():
        monkeypatch.setattr(duplicates, name, value)
    vectors = clustered(total, dimension, topics, seed=total)
    expected = all_with_all(vectors, threshold)
    assert len(expected) > 20
    assert groups(vectors, threshold).tolist() == components(total, expected)


def test_the_threshold_is_that_of_the_float64_cosine():
    """Each pair's own cosine as the threshold: in, and a hair above it: out."""
    vectors = clustered(60, 384, 4, seed=1, spread=0.3)
    for (first, second), cosine in list(all_with_all(vectors, 0.8).items())[:40:4]:
        pair = vectors[[first, second]]
        assert groups(pair, cosine).tolist() == [0, 0]
        assert groups(pair, float(np.nextafter(cosine, 2))).tolist() == [0, 1]


def test_the_order_of_the_rows_does_not_matter():
    vectors = clustered(2000, 64, 50, seed=2)
    order = np.random.default_rng(0).permutation(len(vectors))
    moved, still = groups(vectors[order], 0.9), groups(vectors, 0.9)
    named = {frozenset(order[moved == root].tolist()) for root in set(moved.tolist())}
    assert named == {frozenset(np.flatnonzero(still == root).tolist()) for root in set(still.tolist())}
    assert 10 < len(named) < 2000


@pytest.mark.parametrize("total", [0, 1, 2, 300, 2000])
def test_rows_that_are_all_equal(total):
    vectors = np.repeat(clustered(1, 8, 1, seed=3), total, axis=0)
    assert groups(vectors, 0.9).tolist() == [0] * total


def test_nothing_is_near_where_nothing_is():
    assert groups(np.eye(64, dtype=np.float32), 0.9).tolist() == list(range(64))


def test_a_chain_is_one_group():
    """Neighbors resemble each other, the ends do not."""
    angles = np.arange(3000)[np.random.default_rng(4).permutation(3000)] * 0.001
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert set(groups(vectors, 0.999_999).tolist()) == {0}
