"""Experiential RL in waves of several families: the rows are those of waves of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.recipes.erl.rows import Reflection
from crl.records import Generation, Task, Turn
from crl.rollout.play import waves_of
from crl.rounds.waves import together
from tests.recipes.erl.erl_played import experiment, played

pytestmark = pytest.mark.slow

PROMPT = experiment().method.prompts["actor"].model_dump(mode="json")


def test_waves_of_two_families_play_and_reflect_what_waves_of_one_do(tmp_path: Path) -> None:
    family = experiment().method.families[0].model_dump(mode="json")
    own = {"actor": {**PROMPT, "system": "Go. {actions}"}}
    families = [{**family, "name": "lake"}, {**family, "name": "pond", "prompts": own}]
    runs = [
        played(tmp_path / str(mix), 1, method__families=families, method__rollout__mixed_waves=mix)
        for mix in (False, True)
    ]
    assert [len(waves_of(run.rows(Task, "plan", 1), 64, together(run.method))) for run in runs] == [2, 1]
    for stage, row_type in (("collect", Turn), ("reflect", Reflection), ("retry", Turn), ("retry", Generation)):
        found = [sorted(map(repr, run.rows(row_type, stage, 1))) for run in runs]
        assert found[0] and found[0] == found[1], (stage, row_type)
