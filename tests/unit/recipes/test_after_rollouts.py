"""What recipes say of themselves in AFTER_ROLLOUTS, held against every setting that their stages read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Experiment
from crl.rounds.context import MemoryWriter, StageContext
from crl.rounds.fork import ALWAYS_AFTER, OF_UPDATES, rollout_stages, within
from crl.rounds.recipe import recipe_in
from tests.recipe_runs import requires
from tests.unit.recipes.branched import finished, services_of
from tests.unit.recipes.played import CRITIC
from tests.unit.recipes.tracing import settings_read


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("complementary", {"method__recipe__self_distillation": {}, "method__recipe__bank__duplicates": "near",
                           "method__recipe__actor_critic": {}, "method__prompts__critic": CRITIC,
                           "method__recipe__trial": {"layouts": 2}}),
        pytest.param("erl", {}, marks=requires("erl")),
        pytest.param("dreamgym", {"method__recipe__synthetic_share": 0.5}, marks=requires("dreamgym")),
        pytest.param("uniform", {}, marks=requires("importance_replay")),
        pytest.param("learned", {}, marks=requires("importance_replay")),
    ],
)  # fmt: skip
def test_stages_that_play_read_no_setting_that_may_change(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    run = finished(tmp_path, 1, kind, **settings)
    recipe, services = recipe_in(run), services_of(Experiment.model_construct(name="any", method=run.method))
    free = {*ALWAYS_AFTER, *run.method.recipe.after_rollouts(run.method)}
    seen: dict[str, set[str]] = {}
    for stage in recipe.stages_of(run.method, 1):
        scratch = tmp_path / stage.name
        scratch.mkdir()
        writer = MemoryWriter(scratch)
        context = StageContext(
            method=run.method, recipe=recipe, stage=stage, round_number=1, reader=run, writer=writer,
            services=services, progress=lambda metrics: None,
        )  # fmt: skip
        with settings_read(run.method) as found:
            if stage.run is not None:
                stage.run(context)
            for part in range(stage.parts(context)) if stage.parts is not None else ():
                assert stage.run_part is not None
                stage.run_part(context, part)
        with settings_read(run.method) as of_recipe:  # which stages are due, as every resolved read asks
            recipe.stages_of(run.method, 1)
        seen[stage.name] = {key for key in found - of_recipe if any(within(key, each) for each in free)}
    playing = {stage.name: stage for stage in rollout_stages(recipe, run.method, 1)}
    assert not {"distill", "trial"} & set(playing)
    # An update that is kept with the rollouts keeps the settings of its role.
    updated = [f"roles.{stage.role}.{key}" for stage in playing.values() if stage.update for key in OF_UPDATES]
    assert {
        (name, key)
        for name in playing
        for key in seen[name]
        if not any(within(key, pattern) for pattern in updated)
    } == set()  # fmt: skip
    follows = "measure" if kind == "learned" else "credit"
    assert seen[follows] and seen.get("consolidate", True), "what follows reads them, so the watch sees something"
