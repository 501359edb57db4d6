"""Seeds: every random stream derives from (experiment seed, round, stage, task, member)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def seed_for(experiment_seed: int, *parts: str | int) -> np.random.SeedSequence:
    """A `SeedSequence` for a place in the run. Strings enter by SHA-256: Python's `hash` differs between processes."""
    words = [experiment_seed]
    for part in parts:
        if isinstance(part, int):
            words.append(part)
        else:
            digest = hashlib.sha256(part.encode()).digest()
            words.extend(int.from_bytes(digest[i : i + 4], "big") for i in range(0, 16, 4))
    return np.random.SeedSequence(words)


def number_of(seed: np.random.SeedSequence) -> int:
    """A seed as one number that draws the same: `default_rng(number_of(seed))` is `default_rng(seed)`."""
    entropy = seed.entropy
    words = [int(word) for word in entropy] if isinstance(entropy, Iterable) else [int(entropy or 0)]
    number, shift = 0, 0
    for word in words:  # numpy cuts each word into pieces of 32 bits, the lowest first, and at least one
        number |= word << shift
        shift += 32 * max(1, -(-word.bit_length() // 32))
    return number


def stage_seed_words(experiment_seed: int, round_number: int, stage: str) -> list[int]:
    """The entropy of a stage's seed: it is in the manifest, so a reader can draw the same streams."""
    entropy = seed_for(experiment_seed, round_number, stage).entropy
    return [int(word) for word in entropy] if isinstance(entropy, Iterable) else [int(entropy or 0)]
