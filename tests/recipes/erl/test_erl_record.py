"""What a run of Experiential RL says by SQL alone: what the memory keeps, what the reflector and a revision saw.

The run shows the attempt before to every revision and samples it at a temperature of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import record_of
from crl.recipes.erl.attempts import HEADING
from crl.report.views import query
from tests.marks import sampled
from tests.recipes.erl.erl_played import OWN, played
from tests.tiny_run import cut_back
from tests.unit.recipes.played import Played

pytestmark = pytest.mark.slow
ROUNDS, LONGEST = 3, 150
SETTINGS = {
    "method__recipe__memory__top_k": 1, "method__recipe__attempt_characters": LONGEST, "method__evaluation__every": 0,
    "method__recipe__revision": {"shows_attempt": True, "temperature": 0.6}, "method__recipe__revisions": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("erl"), ROUNDS, **SETTINGS)


def sql(run: Played, text: str) -> list[tuple[Any, ...]]:
    return query(run.run.path, text)[1]


def test_an_entry_keeps_both_attempts_clipped(run: Played) -> None:
    kept = sql(
        run,
        "SELECT a.entry_id, a.episode_id, a.retry_id, e.success, length(first), length(revised), first, revised "
        "FROM revised_attempts a JOIN episodes e ON a.retry_id = e.episode_id",
    )
    added = sql(run, "SELECT entry_id, episode_ids[1], episode_ids[2] FROM operations WHERE kind = 'add'")
    assert len(added) > 3 and sorted(row[:3] for row in kept) == sorted(added)
    assert {row[3] for row in kept} == {True}
    assert max(max(row[4:6]) for row in kept) <= LONGEST and any("…" in row[6] for row in kept), "some were clipped"
    for row in kept:
        assert row[6].count("Result: ") == 1 and row[7].endswith("Result: The episode ended: success. Reward: 1.")


SAW = """
    SELECT r.revision, r.text, a.first, a.revised, m.text, g.prompt
    FROM reflections r JOIN generations g ON g.generation_id = r.generation_id
    JOIN revised_attempts a ON a.entry_id = r.entry_ids[1]
    JOIN reflections m ON a.entry_id = 'x-' || m.reflection_id || '-o0'
"""


def test_the_reflector_saw_first_attempt_reflection_and_revised_attempt_of_what_it_read(run: Played) -> None:
    seen = sql(run, SAW)
    [[read]] = sql(run, "SELECT count(*) FROM reflections WHERE len(entry_ids) > 0")
    assert len(seen) == read > 5 and {row[0] for row in seen} == {1, 2}
    for _, _, first, revised, reflection, prompt in seen:
        assert f"Attempt:\n{first}\nReflection:\n{reflection}\nRevised attempt:\n{revised}" in prompt


def test_a_revision_saw_the_attempt_before_it_and_was_sampled_at_its_own_temperature(run: Played) -> None:
    temperatures = sql(run, "SELECT DISTINCT stage, temperature FROM generations WHERE role = 'actor' ORDER BY ALL")
    assert temperatures == [("collect", 1.0), ("retry", 0.6), ("retry_2", 0.6)]
    trained = (
        "SELECT count(*) FROM samples s JOIN generations g USING (generation_id) WHERE s.temperature <> g.temperature"
    )
    assert sql(run, trained) == [(0,)]
    shown = sql(
        run,
        "SELECT e.experiences, e.entry_ids, g.prompt, r.text, b.last_observation FROM episodes e "
        "JOIN generations g ON g.generation_id = e.generation_ids[1] JOIN reflections r ON r.retry_id = e.episode_id "
        "JOIN episodes b ON b.episode_id = r.episode_id WHERE e.stream = 'second'",
    )
    assert len(shown) > 10
    for (instructions, attempt), ids, prompt, text, _ in shown:
        assert ids[1] == "attempt" and attempt.startswith(f"{HEADING}\n")
        assert len(attempt) <= LONGEST + len(HEADING) + 1
        assert f"{instructions}\n\n{attempt}" in prompt
        assert instructions == text or text is None
    by_own = [ids[0] for (instructions, _), ids, *_ in shown if instructions == OWN]
    assert by_own and set(by_own) == {"instructions"}, "after a malformed reflection the prompt's own stay"


def test_what_is_internalized_has_neither_reflection_nor_attempt_in_its_context(run: Played) -> None:
    pairs = sql(
        run,
        "SELECT list_slice(s.token_ids, 1, list_position(s.loss_mask, 1) - 1), "
        "list_slice(g.token_ids, 1, list_position(g.loss_mask, 1) - 1) FROM samples s JOIN episodes e "
        "ON s.generation_id = e.generation_ids[1] JOIN generations g "
        "ON g.generation_id = regexp_replace(e.episode_id, '-a[0-9]+$', '') || '-collect' WHERE s.objective = 'nll'",
    )
    assert len(pairs) > 5 and all(stripped == first for stripped, first in pairs)


def test_the_record_is_intact(run: Played) -> None:
    assert problems_of(run.run, run.recipe, record_of(run.run.path)) == []


@pytest.mark.parametrize("stage", sampled(["reflect", "retry", "distill", "credit"], 2))
def test_it_resumes_to_equal_digests(run: Played, tmp_path: Path, stage: str) -> None:
    copied = shutil.copytree(run.run.path, tmp_path / run.run.path.name)
    cut_back(copied, 2, stage)
    assert played(tmp_path, ROUNDS, **SETTINGS).digests() == run.digests()
