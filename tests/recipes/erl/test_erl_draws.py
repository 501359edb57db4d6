"""Dynamic sampling of first attempts: reflections and further attempts answer all of them, whatever they teach."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from crl.recipes.erl.rows import Reflection
from crl.records import Episode, Sample, Task
from tests.recipes.erl.erl_played import played
from tests.unit.recipes.played import Played

ROUNDS, DRAWS = 2, ("", "_2", "_3")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(
        tmp_path_factory.mktemp("erl"), ROUNDS, luck=0.15, method__rollout__dynamic_sampling={"max_draws": len(DRAWS)}
    )


def firsts(run: Played, number: int) -> list[Episode]:
    """First attempts of every draw."""
    return [row for draw in DRAWS for row in run.rows(Episode, f"collect{draw}", number)]


def varied(episodes: list[Episode]) -> set[int]:
    """Groups with a won and a lost attempt."""
    won: dict[int, set[bool]] = defaultdict(set)
    for row in episodes:
        won[row.group].add(row.success)
    return {group for group, outcomes in won.items() if len(outcomes) == 2}


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_first_attempts_are_drawn_again_and_all_are_answered(run: Played, number: int) -> None:
    first, groups = firsts(run, number), run.method.families[0].groups
    drawn = [{task.group for task in run.rows(Task, f"plan{draw}", number)} for draw in DRAWS]
    assert len(drawn[0]) == groups
    assert len(drawn[1]) == groups - len(varied(run.rows(Episode, "collect", number)))
    pending = {row.episode_id for row in first if not row.success and row.error is None}
    assert {row.episode_id for row in run.rows(Reflection, "reflect", number)} == pending
    assert len(run.rows(Episode, "retry", number)) == len(pending)


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_first_attempts_that_teach_nothing_are_left_out_and_nothing_else(run: Played, number: int) -> None:
    first = firsts(run, number)
    taught = {name for row in first if row.group in varied(first) for name in row.generation_ids}
    others = {name for row in run.rows(Episode, "retry", number) for name in row.generation_ids}
    samples = run.rows(Sample, "credit", number)
    trained = [row for row in samples if row.role == "actor" and row.objective == "grpo"]
    assert {row.generation_id for row in trained} == taught | others
    of_step = [row for row in samples if run.method.owner(row.role) == "actor"]
    for row in trained:
        assert row.weight == pytest.approx(1 / len(of_step)), "the mean is over those that are trained"


def test_something_was_drawn_again_and_some_draw_was_empty(run: Played, tmp_path: Path) -> None:
    counts = [[len(run.rows(Task, f"plan{draw}", number)) for draw in DRAWS] for number in range(1, ROUNDS + 1)]
    assert any(each[1] for each in counts), counts
    lucky = played(tmp_path, 1, luck=0.5, method__rollout__dynamic_sampling={"max_draws": 8})
    assert not lucky.rows(Task, "plan_8", 1) and not lucky.rows(Episode, "collect_8", 1)
