"""Near-duplicates of a bank: the search of `crl/bank/duplicates.py` against comparing all with all, in one run.

    python benchmarks/duplicates.py [DIRECTORY] [--texts 100000] [--planted 5000] [--repeats 3] [--threshold 0.9]

DIRECTORY is one that `bank_data.py` fills with real texts and their MiniLM embeddings. Pairs are planted: as many
vectors are replaced by others, turned to a cosine between the threshold and 0.99. Both ways decide by the same float64
cosine; all with all finds its candidates with float32 products of whole vectors, each pair once, in blocks. Printed is
a Markdown table: seconds (median and range of the repeats, which alternate), pairs, and the share of the planted pairs
and of all pairs that the search found.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bank_data import real_data
from numpy.typing import NDArray

from crl.bank.duplicates import groups, near_duplicates


def with_planted(
    vectors_ND: NDArray[np.float32], planted: int, threshold: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The vectors with pairs planted among them, and those pairs [P, 2]."""
    random = np.random.default_rng(2026)
    pairs_P2 = np.sort(random.choice(len(vectors_ND), size=(planted, 2), replace=False), axis=1)
    base_PD = vectors_ND[pairs_P2[:, 0]].astype(np.float64)
    away_PD = random.standard_normal(base_PD.shape)
    away_PD -= np.einsum("pd,pd->p", away_PD, base_PD)[:, None] * base_PD
    away_PD /= np.linalg.norm(away_PD, axis=1, keepdims=True)
    # A little above the threshold: rounding the vectors must not take a planted pair away.
    cosine_P1 = random.uniform(threshold + 1e-6, 0.99, size=(planted, 1))
    made_ND = vectors_ND.copy()
    made_ND[pairs_P2[:, 1]] = base_PD * cosine_P1 + away_PD * np.sqrt(1 - cosine_P1**2)
    return made_ND, pairs_P2


def all_with_all(vectors_ND: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    """Every near-duplicate pair as `first * N + second`, found by comparing all with all."""
    total, found = len(vectors_ND), []
    for at in range(0, total, 2048):
        for start in range(at, total, 8192):
            products = vectors_ND[at : at + 2048] @ vectors_ND[start : start + 8192].T
            rows, columns = np.divmod(np.flatnonzero(products >= threshold - 1e-4), products.shape[1])
            rows, columns = rows + at, columns + start
            rows, columns = rows[columns > rows], columns[columns > rows]
            cosines = (vectors_ND[rows].astype(np.float64) * vectors_ND[columns]).sum(axis=1)
            found.append(rows[cosines >= threshold] * total + columns[cosines >= threshold])
    return np.unique(np.concatenate(found))


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("build/bank_data"))
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--planted", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threshold", type=float, default=0.9)
    asked = parser.parse_args()
    real_ND = real_data(asked.directory, asked.texts, 1).embeddings_ND
    vectors_ND, planted_P2 = with_planted(real_ND, asked.planted, asked.threshold)
    total, threshold = len(vectors_ND), asked.threshold

    def search() -> NDArray[np.int64]:
        pairs = near_duplicates(vectors_ND, threshold)
        return pairs.first_P * total + pairs.second_P

    ways: dict[str, Callable[[], NDArray[np.int64]]] = {
        "`near_duplicates`: pairs": search,
        "`groups`: their components": lambda: groups(vectors_ND, threshold),
        "all with all": lambda: all_with_all(vectors_ND, threshold),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for _ in range(asked.repeats):
        for name, way in ways.items():
            started = time.perf_counter()
            results[name] = way()
            seconds[name].append(time.perf_counter() - started)
    found, joined, every = results.values()
    planted = planted_P2[:, 0] * total + planted_P2[:, 1]
    in_planted, in_every = np.isin(planted, found).mean(), np.isin(every, found).mean()
    print(f"{total:,} vectors, cosine >= {threshold:g}, {asked.planted:,} pairs planted\n")
    print("| way | seconds | range | found |\n|---|---|---|---|")
    for name, listed in seconds.items():
        counted = {
            "all with all": f"{len(every):,} pairs",
            "`groups`: their components": f"{len(np.unique(joined[joined != np.arange(total)])):,} groups",
        }.get(name, f"{len(found):,} pairs: {in_planted:.4%} of the planted, {in_every:.4%} of all")
        print(f"| {name} | {statistics.median(listed):.1f} | {min(listed):.1f} to {max(listed):.1f} | {counted} |")
    if not np.array_equal(found, every):
        raise SystemExit("the search and comparing all with all disagree")


if __name__ == "__main__":
    main()
