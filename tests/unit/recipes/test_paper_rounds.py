"""A round of every file of `conf/paper`, with models that know nothing: its switches, prompts and environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config.load import load_experiment
from crl.policies import resolve_model
from crl.recipes import recipe_of
from crl.recipes.audit import problems_of
from crl.records import Episode, Evaluation
from crl.run.verify import verify
from tests.learning.harness import rows, train
from tests.unit.envs.alfworld.world import make_data
from tests.unit.envs.webshop_files import record, write
from tests.unit.extractor.test_thinking import write_thinking
from tests.unit.policies.test_model_embedder import write_embedder
from tests.unit.recipes.test_paper_method import PAPER, SMALL

pytestmark = pytest.mark.slow

FILES = sorted(path.stem for path in PAPER.parent.glob("*.yaml"))
GROUP = 4


def official_data(directory: Path) -> dict[str, dict[str, Any]]:
    """What each environment that needs files is given: files of the official form, with contents of our own."""
    shop, house = directory / "shop", directory / "house"
    shop.mkdir()
    write(shop, [record(number) for number in range(40)])
    make_data(house)
    return {
        "webshop": {"directory": str(shop)},
        "alfworld": {"data": str(house)},
        "hotpotqa": {"questions": "own", "embedder": "lexical"},
        "minihack": {},
        "sokoban": {},
        "frozenlake": {},
    }


def cut(name: str, directory: Path) -> dict[str, Any]:
    """Settings that make the file's experiment small: tiny models, short episodes, four of them of each task."""
    plain = load_experiment(PAPER.with_name(f"{name}.yaml")).method
    data = official_data(directory)
    made: dict[str, Any] = {"method.rollout.group_size": GROUP, "method.evaluation.every": 1, "method.threads": 1}
    made["runtime.min_free_gigabytes"] = 0
    for index, family in enumerate(plain.families):
        place = f"method.families.{index}"
        made |= {f"{place}.groups": 1, f"{place}.evaluation_seeds.count": 1, f"{place}.environment.max_turns": 3}
        made |= {f"{place}.environment.{key}": value for key, value in data[family.environment.kind].items()}
        if family.sampling is not None:
            made[f"{place}.sampling.max_new_tokens"] = SMALL["sampling.max_new_tokens"]
    models = {"actor": "tiny", "extractor": str(write_thinking(directory / "thinking"))}
    for role, config in plain.roles.items():
        own = SMALL if config.weights is None else {key: SMALL[key] for key in ("context", "sampling.max_new_tokens")}
        made |= {f"method.roles.{role}.{key}": value for key, value in own.items()}
        if config.weights is None:
            made[f"method.roles.{role}.model"] = models[role]
    if plain.recipe.kind == "complementary":
        embedder = write_embedder(resolve_model("tiny").path, directory / "embedder", longest=512)
        made["method.recipe.retrieval.embedder"] = str(embedder)
        made["method.recipe.distill.max_characters"] = 200
        made["method.recipe.extractor_objective.batch"] = 4
        made["method.recipe.warm_up_rounds"] = 0
    return made


@pytest.mark.parametrize("name", FILES)
def test_a_round_leaves_a_sound_record(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(PAPER.with_name(f"{name}.yaml"), cut(name, tmp_path))
    families = experiment.method.families
    if any(family.environment.kind == "minihack" for family in families):
        pytest.importorskip("minihack", reason="minihack is not installed")
    run = train(experiment, tmp_path / "runs", 1)
    episodes = rows(run, Episode, "collect", [1])
    assert len(episodes) == GROUP * len(families) and {episode.error for episode in episodes} == {None}
    assert {episode.family for episode in episodes} == {family.name for family in families}
    assert len(rows(run, Evaluation, "evaluate", [1])) >= len(families)
    assert verify(run.path) == [] == problems_of(run, recipe_of(run.method))
