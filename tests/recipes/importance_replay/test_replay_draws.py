"""Dynamic sampling beside a replay buffer: only what teaches something enters, from every draw."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from crl.recipes.importance_replay.rows import ReplayItem
from crl.records import Episode, Task
from tests.recipes.importance_replay.replay_played import played

DRAWS = ("", "_2", "_3")

pytestmark = pytest.mark.slow


def test_the_buffer_holds_the_groups_that_vary_of_every_draw(tmp_path: Path) -> None:
    run = played(tmp_path, 1, method__rollout__dynamic_sampling={"max_draws": len(DRAWS)})
    drew = 0
    for number in (1,):
        episodes = [row for draw in DRAWS for row in run.rows(Episode, f"collect{draw}", number)]
        drew += len(run.rows(Task, "plan_2", number))
        won: dict[int, set[bool]] = defaultdict(set)
        for row in episodes:
            won[row.group].add(row.success)
        entered = {row.episode_id for row in run.rows(ReplayItem, "credit", number) if row.generation_round == number}
        assert entered == {row.episode_id for row in episodes if len(won[row.group]) == 2}
    assert drew > 0, "something was drawn again"
