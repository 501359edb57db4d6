"""What the benchmarks of the store put into it: entries with vectors, changes of 1 % a round, queries.

With the directory that `bank_data.py` fills, texts and vectors are real (MiniLM), and what goes beyond them is mixed
from two of them with noise. Without it both are made up: vectors in clusters of clusters, texts of random words.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bank_systems.base import Changes, Rows

DIMENSIONS = 384
FAMILIES = 4
_WORDS = [
    "avoid", "back", "before", "bridge", "corner", "cross", "door", "east", "failures", "go", "guard", "holes", "hurt",
    "ice", "key", "leaves", "locked", "look", "marked", "moves", "north", "other", "path", "potion", "pushing", "read",
    "red", "shield", "sign", "slowly", "south", "stairs", "stones", "the", "try", "turn", "wait", "wall", "west",
]  # fmt: skip


class Source:
    """A stream of entries: the same ones for every system and every run."""

    def __init__(self, directory: Path | None) -> None:
        self._random = np.random.default_rng(0)
        self.real = directory is not None
        self._texts: list[str] = []
        if directory is None:
            self._base_ND, self.queries_QD = _clusters(self._random, 100_000)
        else:
            from bank_data import real_data

            found = real_data(directory, 100_000, 1_024)
            self._texts, self._base_ND, self.queries_QD = found.texts, found.embeddings_ND, found.queries_QD
        self._given = 0

    def rows(self, count: int) -> Rows:
        """Entries that were not given before."""
        first, self._given = self._given, self._given + count
        return Rows(
            ids=[f"e{number:07d}" for number in range(first, first + count)],
            families=[f"family-{number % FAMILIES}" for number in range(first, first + count)],
            texts=[self._text(number) for number in range(first, first + count)],
            vectors_ND=self._vectors(first, count),
        )

    def changes(self, present: dict[str, str], share: float) -> Changes:
        """A round: of the share half gets a new text, a quarter is new, a quarter goes. `present` holds families by id,
        and is brought up to date."""
        count = max(4, int(len(present) * share))
        chosen = self._random.choice(len(present), size=count // 2 + count // 4, replace=False)
        ids = list(present)
        updated, removed = [ids[row] for row in chosen[: count // 2]], [ids[row] for row in chosen[count // 2 :]]
        rewritten, added = self.rows(len(updated)), self.rows(len(removed))
        changes = Changes(
            updated=Rows(updated, [present[name] for name in updated], rewritten.texts, rewritten.vectors_ND),
            added=added,
            removed=[(entry_id, present[entry_id]) for entry_id in removed],
        )
        for entry_id in removed:
            del present[entry_id]
        present.update(zip(added.ids, added.families, strict=True))
        return changes

    def _text(self, number: int) -> str:
        if number < len(self._texts):
            return self._texts[number]
        if self._texts:
            one, other = self._random.integers(len(self._texts), size=2)
            return f"{self._texts[one]} {self._texts[other]} [{number}]"
        words = self._random.choice(_WORDS, size=int(self._random.integers(8, 30)))
        return f"{' '.join(words)} [{number}]"

    def _vectors(self, first: int, count: int) -> NDArray[np.float32]:
        kept = self._base_ND[first : first + count]
        missing = count - len(kept)
        if not missing:
            return np.ascontiguousarray(kept)
        one, other = self._random.integers(len(self._base_ND), size=(2, missing))
        part_M1 = self._random.uniform(0.3, 0.7, size=(missing, 1)).astype(np.float32)
        mixed_MD = part_M1 * self._base_ND[one] + (1 - part_M1) * self._base_ND[other]
        mixed_MD += 0.02 * self._random.standard_normal(mixed_MD.shape, dtype=np.float32)
        return np.concatenate([kept, _unit(mixed_MD)])


def _clusters(random: np.random.Generator, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    coarse = _unit(random.standard_normal((32, DIMENSIONS), dtype=np.float32))
    fine = _unit(coarse[random.integers(32, size=1_000)] + 0.05 * random.standard_normal((1_000, DIMENSIONS)))
    rows = fine[random.integers(1_000, size=count + 1_024)]
    rows = _unit(rows + 0.04 * random.standard_normal(rows.shape))
    return rows[:count], rows[count:]


def _unit(vectors_ND: NDArray[np.floating]) -> NDArray[np.float32]:
    return np.asarray(vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True), dtype=np.float32)
