"""Vectors that tests of indexes share."""

import math

import numpy as np


def unit(seed: int, rows: int, dimension: int = 24) -> np.ndarray:
    """Unit vectors in random directions."""
    return normed(np.random.default_rng(seed).normal(size=(rows, dimension)))


def clustered(seed: int, rows: int, dimension: int = 64, centers: int = 60) -> np.ndarray:
    """Unit vectors around some centers, as texts about some subjects have them."""
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(99).normal(size=(centers, dimension))
    return normed(middles[rng.integers(centers, size=rows)] + 0.7 * rng.normal(size=(rows, dimension)))


def normed(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1 in float32."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def brute(vectors: np.ndarray, query: np.ndarray, count: int) -> list[int]:
    """Rows of the nearest, in exact arithmetic, equal ones in row order."""
    cosines = [math.fsum(float(a) * float(b) for a, b in zip(row, query, strict=True)) for row in vectors]
    return sorted(range(len(vectors)), key=lambda row: (-cosines[row], row))[:count]
