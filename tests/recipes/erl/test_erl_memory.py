"""What the memory of Experiential RL shows by similarity: the nearest of the task's own family, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from crl.policies.embedders import LexicalEmbedder
from crl.recipes.erl.rows import Reflection
from crl.records import BankEvent, Retrieval, Task
from tests.recipes.erl.erl_played import WORDS, experiment, paid, shown_at
from tests.unit.recipes.played import Played

pytestmark = pytest.mark.slow

ROUNDS, TOP, THRESHOLD = 3, 2, 0.4


def some_words(read: str, generator: np.random.Generator) -> str:
    """One to three words, some of which a task shows too."""
    return " ".join(generator.choice(WORDS, size=generator.integers(1, 4), replace=False))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    family = experiment().method.families[0].model_dump(mode="json")
    memory = {"order": "similarity", "top_k": TOP, "threshold": THRESHOLD, "embedder": "lexical"}
    return paid(
        tmp_path_factory.mktemp("similar"), ROUNDS, some_words,
        method__families=[{**family, "name": name} for name in ("lake", "pond")],
        method__recipe__memory=memory, method__recipe__bank={"capacity": 500, "duplicates": "keep"},
    )  # fmt: skip


def entries_before(run: Played, number: int) -> dict[str, Reflection]:
    """What had entered the memory before a round, by entry; nothing ever leaves it here."""
    found = {}
    for earlier in range(1, number):
        written = {f"x-{row.reflection_id}-o0": row for row in run.rows(Reflection, "reflect", earlier)}
        events = run.rows(BankEvent, "consolidate", earlier)
        assert {row.kind for row in events} <= {"add", "return"}
        found |= {str(row.entry_id): written[str(row.entry_id)] for row in events if row.kind == "add"}
    return found


def vectors(texts: list[str]) -> np.ndarray:
    return np.asarray(LexicalEmbedder().embed(texts), dtype=np.float64)


def test_the_nearest_of_ones_own_family_are_shown_as_many_as_are_asked_for_and_near_enough(run: Played) -> None:
    counts, left_out, nearer_elsewhere = set(), 0, 0
    for number in range(2, ROUNDS + 1):
        entries = entries_before(run, number)
        vectors_ND = vectors([str(row.text) for row in entries.values()])
        places = {entry_id: place for place, entry_id in enumerate(entries)}
        seeds = {row.episode_id: row.environment_seed for row in run.rows(Task, "plan", number)}
        for row in run.rows(Reflection, "reflect", number):
            cosines_N = vectors_ND @ vectors([f"Earn.\n{shown_at(seeds[row.episode_id])}"])[0]
            own_N = np.array([entry.family == row.family for entry in entries.values()])
            eligible = np.sort(cosines_N[own_N & (cosines_N >= THRESHOLD)])[::-1]
            shown = [places[entry_id] for entry_id in row.entry_ids]
            assert len(set(shown)) == len(shown) and all(own_N[shown])
            # By their cosines: of texts that are as near as each other any may come first.
            assert cosines_N[shown] == pytest.approx(eligible[:TOP], abs=1e-6)
            counts.add(len(shown))
            left_out += len(eligible) > TOP
            nearer_elsewhere += bool(shown) and cosines_N[~own_N].max() > cosines_N[shown].max() + 1e-6
    assert counts == {0, 1, 2} and left_out > 0, "none, one and two are near enough, and more than are shown"
    assert nearer_elsewhere > 0, "the other family has something nearer"


def test_the_similarities_on_record_are_cosines_and_ranks_follow_them(run: Played) -> None:
    entries = entries_before(run, ROUNDS)
    seeds = {f"{row.episode_id}-a2": row.environment_seed for row in run.rows(Task, "plan", ROUNDS)}
    rows = run.rows(Retrieval, "reflect", ROUNDS)
    assert rows
    for row in rows:
        text, query = vectors([str(entries[row.entry_id].text), f"Earn.\n{shown_at(seeds[row.episode_id])}"])
        cosine = float(text @ query / (np.linalg.norm(text) * np.linalg.norm(query)))
        assert row.similarity == pytest.approx(cosine, abs=1e-6) and row.chosen == (cosine >= THRESHOLD)
    for name in {row.episode_id for row in rows}:
        found = sorted((row for row in rows if row.episode_id == name), key=lambda row: row.rank)
        similarities = [row.similarity for row in found]
        assert similarities == sorted(similarities, reverse=True) and [row.rank for row in found] == [0, 1]
