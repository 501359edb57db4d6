"""A small search on the GPU, for a process that may not survive it: exit code 0 where it finds what the CPU finds."""

from __future__ import annotations

import sys

import numpy as np

from crl.bank.index.library import gpu_resources, load_faiss

_ROWS, _QUERIES, _DIMENSION, _COUNT = 4096, 32, 384, 16
_ROUNDING = 1e-4


def main() -> str | None:
    """What is wrong, or None."""
    faiss = load_faiss()
    draw = np.random.default_rng(0)
    vectors_ND, queries_QD = (
        draw.standard_normal((count, _DIMENSION), dtype=np.float32) for count in (_ROWS, _QUERIES)
    )
    for each in (vectors_ND, queries_QD):
        each /= np.linalg.norm(each, axis=1, keepdims=True)
    index = faiss.GpuIndexFlatIP(gpu_resources(), _DIMENSION, faiss.GpuIndexFlatConfig())
    index.add(vectors_ND)
    values_QK, _ = index.search(queries_QD, _COUNT)
    expected_QK = -np.sort(-(queries_QD @ vectors_ND.T), axis=1)[:, :_COUNT]
    worst = float(np.abs(values_QK - expected_QK).max())
    return None if worst <= _ROUNDING else f"it finds other values than the CPU, off by {worst:.3g}"


if __name__ == "__main__":
    sys.exit(main())
