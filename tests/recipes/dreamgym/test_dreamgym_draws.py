"""Dynamic sampling of DreamGym's real groups; synthetic ones are the curriculum's choice and stay."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from crl.recipes.dreamgym.rows import DreamTask, Transition
from crl.records import SYNTHETIC, Episode, Sample, Task
from tests.recipes.dreamgym.dreamgym_played import played

DRAWS = ("", "_2", "_3")

pytestmark = pytest.mark.slow


def test_real_groups_are_drawn_again(tmp_path: Path) -> None:
    run = played(
        tmp_path, 2, method__rollout__dynamic_sampling={"max_draws": len(DRAWS)}, method__recipe__synthetic_share=0.5
    )
    drew = 0
    for number in (1, 2):
        first, *later = [run.rows(Task, f"plan{draw}", number) for draw in DRAWS]
        assert all(task.stream != SYNTHETIC for tasks in later for task in tasks)
        drew += sum(map(len, later))
        episodes = [row for draw in DRAWS for row in run.rows(Episode, f"collect{draw}", number)]
        won: dict[int, set[bool]] = defaultdict(set)
        for row in run.rows(Episode, "collect", number):
            won[row.group].add(row.success)
        real = {task.group for task in first if task.stream != SYNTHETIC}
        assert len({task.group for task in later[0]}) == sum(len(won[group]) < 2 for group in real)
        origins = [row.group for draw in DRAWS for row in run.rows(DreamTask, f"plan{draw}", number)]
        assert sorted(origins) == sorted({row.group for row in episodes})
        sampled = {row.generation_id for row in run.rows(Sample, "credit", number)}
        for row in episodes:
            won[row.group].add(row.success)
        for row in episodes:
            if row.stream != SYNTHETIC and row.error is None:
                assert (row.generation_ids[0] in sampled) == (len(won[row.group]) == 2)
    assert drew > 0, "something was drawn again"
    entered = [row for draw in DRAWS for row in run.rows(Transition, f"collect{draw}", 1)]
    assert entered
