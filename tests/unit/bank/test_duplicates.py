"""Near-duplicates: exactly the pairs that comparing all with all finds, whatever the blocks, cells and order."""

from __future__ import annotations

import numpy as np
import pytest

from crl.bank import duplicates
from crl.bank.duplicates import groups, near_duplicates
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


def as_dict(pairs):
    keys = list(zip(pairs.first_P.tolist(), pairs.second_P.tolist(), strict=True))
    assert keys == sorted(keys) and len(pairs) == len(set(keys))
    return dict(zip(keys, pairs.cosine_P.tolist(), strict=True))


def components(total, pairs):
    root = list(range(total))
    for _ in range(total):
        before = list(root)
        for first, second in pairs:
            root[first] = root[second] = min(root[first], root[second])
        if root == before:
            return root
    return root


CASES = [
    # rows, dimension, topics, threshold, sizes of cells and blocks
    (900, 96, 40, 0.9, {"_CELL": 20, "_ROWS": 16, "_COLUMNS": 64}),
    (900, 96, 40, 0.9, {"_CELL": 20, "_ROWS": 64, "_COLUMNS": 16}),
    (900, 96, 8, 0.7, {"_CELL": 20, "_DENSE": 0.0}),
    (900, 96, 40, 0.95, {"_CELL": 20, "_DENSE": 1.0, "_PAIRS": 7}),
    (900, 20, 300, 0.9, {"_CELL": 5, "_MOST_CELLS": 64}),
    (900, 3, 10, 0.99, {"_CELL": 20, "_ROWS": 100, "_COLUMNS": 100}),
    (2500, 80, 60, 0.9, {}),
    (300, 96, 5, -0.2, {"_CELL": 20}),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_exactly_the_pairs_of_all_with_all(case, monkeypatch):
    total, dimension, topics, threshold, sizes = CASES[case]
    for name, value in sizes.items():
        monkeypatch.setattr(duplicates, name, value)
    vectors = clustered(total, dimension, topics, seed=case)
    expected = all_with_all(vectors, threshold)
    assert len(expected) > 20
    assert as_dict(near_duplicates(vectors, threshold)) == expected
    assert groups(vectors, threshold).tolist() == components(total, expected)


def test_the_cells_leave_most_comparisons_out():
    """Else the test above would say nothing about them."""
    vectors = clustered(6000, 96, 30, seed=5, spread=0.2)
    some = vectors[:2000]
    assert sum(len(rows) for rows, _ in duplicates._candidates(some, -1.0)) == 2000 * 1999 / 2
    compared = 6000 * 5999 / 2
    home, visits = duplicates._cells(vectors, radius=np.sqrt(0.2), margin=1e-4)
    sizes = np.bincount(home)
    inside = sum(size * (size - 1) / 2 for size in sizes)
    assert len(visits) == 30 and inside + sum(map(len, visits)) * sizes.mean() < compared / 4


def test_the_threshold_is_that_of_the_float64_cosine():
    """Each pair's own cosine as the threshold: in, and a hair above it: out."""
    vectors = clustered(60, 384, 4, seed=1, spread=0.3)
    for pair, cosine in list(all_with_all(vectors, 0.8).items())[:40:4]:
        assert pair in as_dict(near_duplicates(vectors, cosine))
        assert pair not in as_dict(near_duplicates(vectors, np.nextafter(cosine, 2)))


def test_the_order_of_the_rows_does_not_matter():
    vectors = clustered(2000, 64, 50, seed=2)
    order = np.random.default_rng(0).permutation(len(vectors))
    moved = {
        tuple(sorted((int(order[i]), int(order[j])))): cosine
        for (i, j), cosine in as_dict(near_duplicates(vectors[order])).items()
    }
    assert moved == as_dict(near_duplicates(vectors))


@pytest.mark.parametrize("total", [0, 1, 2, 300, 2000])
def test_rows_that_are_all_equal(total):
    vectors = np.repeat(clustered(1, 8, 1, seed=3), total, axis=0)
    assert groups(vectors).tolist() == [0] * total
    assert len(near_duplicates(vectors[:300])) == min(total, 300) * (min(total, 300) - 1) // 2


def test_nothing_is_near_where_nothing_is():
    assert len(near_duplicates(np.eye(64, dtype=np.float32))) == 0
    assert groups(np.eye(64, dtype=np.float32)).tolist() == list(range(64))


def test_a_chain_is_one_group():
    """Neighbors resemble each other, the ends do not."""
    angles = np.arange(3000)[np.random.default_rng(4).permutation(3000)] * 0.001
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert set(groups(vectors, 0.999_999).tolist()) == {0}
    assert len(near_duplicates(vectors, 0.999_999)) < 3000 * 2
