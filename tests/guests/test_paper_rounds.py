"""A round of every file of `conf/paper`, with models that know nothing: its switches, prompts and environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config import Method
from crl.config.load import load_experiment
from crl.policies import resolve_model
from crl.records import SYNTHETIC, Episode, Evaluation
from crl.rounds.recipe import recipe_of
from tests.learning.harness import rows, train
from tests.unit.extractor.test_thinking import write_thinking
from tests.unit.policies.test_model_embedder import write_embedder
from tests.worlds.alfworld.world import make_data
from tests.worlds.minihack.test_paper_method import CUT, PAPER, SMALL
from tests.worlds.webshop.webshop_files import record, write

pytestmark = pytest.mark.slow

FILES = sorted(path.stem for path in PAPER.parent.glob("*.yaml"))
SHARED = {key: SMALL[key] for key in ("context", "sampling.max_new_tokens")}
"""Of a role that has another's weights."""
EPISODES = 8
"""Of each task: two groups of four."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What environments that need files are given: files of the official form, with contents of our own."""
    shop, house = tmp_path_factory.mktemp("shop"), tmp_path_factory.mktemp("house")
    write(shop, [record(number) for number in range(40)])
    make_data(house)
    return {
        "webshop": {"directory": str(shop)},
        "alfworld": {"data": str(house)},
        "hotpotqa": {"questions": "own", "embedder": "lexical"},
        "swe": {"rows": None, "repositories": None, "sandbox": "bubblewrap", "calls": "text", "level": "easy"},
    }


def cut(method: Method, data: dict[str, dict[str, Any]], directory: Path) -> dict[str, Any]:
    """Settings that make a file's experiment small: tiny models, short episodes, few of them of each task."""
    left_out = ("method.families.", *(() if method.recipe.kind == "complementary" else ("method.recipe.",)))
    made = {key: value for key, value in CUT.items() if not key.startswith(left_out)} | {"method.evaluation.every": 1}
    for index, family in enumerate(method.families):
        place = f"method.families.{index}"
        made |= {f"{place}.groups": 2, f"{place}.evaluation_seeds.count": 1, f"{place}.environment.max_turns": 3}
        more = data.get(family.environment.kind, {})
        made |= {f"{place}.environment.{key}": value for key, value in more.items()}
        if family.sampling is not None:
            made[f"{place}.sampling.max_new_tokens"] = SMALL["sampling.max_new_tokens"]
    models = {"actor": "tiny", "extractor": str(write_thinking(directory / "thinking"))}
    for role, config in method.roles.items():
        own = {**SMALL, "model": models.get(role, "tiny")} if config.weights is None else SHARED
        made |= {f"method.roles.{role}.{key}": value for key, value in own.items()}
    if method.recipe.kind == "complementary":
        embedder = write_embedder(resolve_model("tiny").path, directory / "embedder", longest=512)
        made["method.recipe.retrieval.embedder"] = str(embedder)
    if method.recipe.kind == "importance_replay":
        made["method.recipe.buffer.steps"] = 20
    if method.recipe.kind == "dreamgym":
        made |= {"method.recipe.explore.first": 10, "method.recipe.pools.steps": 2}
        made["method.recipe.store.embedder"] = "lexical"
        made["method.recipe.truth"] = {f"min_{name}_accuracy": None for name in ("observation", "reward", "ending")}
    return made


@pytest.mark.parametrize("name", FILES)
def test_a_round_leaves_a_sound_record(name: str, data: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    path = PAPER.with_name(f"{name}.yaml")
    experiment = load_experiment(path, cut(load_experiment(path).method, data, tmp_path))
    families = experiment.method.families
    if any(family.environment.kind == "minihack" for family in families):
        pytest.importorskip("minihack", reason="minihack is not installed")
    run = train(experiment, tmp_path / "runs", 1)
    episodes = rows(run, Episode, "collect", [1])
    assert len(episodes) == EPISODES * len(families)
    # A model that knows nothing predicts nothing of use.
    assert {episode.error for episode in episodes if episode.stream != SYNTHETIC} == {None}
    assert {episode.family for episode in episodes} == {family.name for family in families}
    assert len(rows(run, Evaluation, "evaluate", [1])) >= len(families)
    assert verify(run.path) == [] == problems_of(run, recipe_of(run.method))
