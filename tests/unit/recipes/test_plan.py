"""What a round plans: how many members of each group are guided, and that only these are retrieved for."""

from __future__ import annotations

from collections import Counter

import pytest

from crl.envs import make_environment
from crl.records import Retrieval, Task
from crl.rounds.context import MemoryWriter, StageContext
from tests.unit.report.scripted import Ask, ScriptedRun, Services, experiment


class Playing(Services):
    """Environments beside the bank's services."""

    def __init__(self, method):
        super().__init__()
        self._families = {family.name: family for family in method.families}

    def environment(self, family, round_number):
        return make_environment(self._families[family])


def planned(run, number):
    """Tasks and retrievals of a round, planned with the bank of the newest one."""

    class Reader:
        path = run.path

        def read(self, round_number, stage, row_type):
            return run.run.read(min(round_number, run.newest), stage, row_type)

    writer = MemoryWriter()
    stage = run.recipe.stage(run.method, number, "plan")
    context = StageContext(
        method=run.method, recipe=run.recipe, stage=stage, round_number=number, reader=Reader(), writer=writer,
        services=Playing(run.method), progress=lambda *metrics: None,
    )  # fmt: skip
    stage.run(context)
    return writer.rows(Task), writer.rows(Retrieval)


@pytest.mark.parametrize(
    ("shares", "guided"),
    [
        ({}, {2: 2, 3: 2, 9: 2}),
        ({"guided_share": 0.0}, {2: 0, 3: 0}),
        ({"guided_share": 1.0}, {2: 4, 3: 4}),
        ({"guided_share": 0.25}, {2: 1, 3: 1}),
        ({"guided_share": 1.0, "guided_share_end": 0.0, "guided_share_rounds": 4}, {2: 3, 3: 2, 4: 1, 5: 0, 9: 0}),
    ],
)
def test_the_first_members_of_a_group_are_guided_as_many_as_the_share_says(tmp_path, shares, guided):
    made = experiment(families=("lake",), **{f"method__recipe__{key}": value for key, value in shares.items()})
    with ScriptedRun(tmp_path, made) as run:
        run.initialize().play(Ask("add", "keep left of the hole"))
        for number, expected in guided.items():
            tasks, retrievals = planned(run, number)
            slots = [task for task in tasks if task.stream == "guided"]
            assert len(tasks) == 4 * 4
            assert Counter(task.group for task in slots) == (dict.fromkeys(range(4), expected) if expected else {})
            assert all(task.member < expected for task in slots)
            chosen = {row.episode_id for row in retrievals if row.chosen}
            assert chosen == {task.episode_id for task in slots}
