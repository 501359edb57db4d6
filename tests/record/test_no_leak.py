"""Nothing leaks, proven from what is recorded: evaluation grids, hidden rules, arms that are alike, prompts.

A small warm start and a small study (two realms, three arms) are made as they always are; then only their records are
read. What an environment knows is drawn again from the recorded seeds.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from crl.config import EnvironmentConfig
from crl.envs.realms import ACTIONS, RealmsConfig, hidden_rule, layouts
from crl.extractor.distill import items_of
from crl.extractor.prompts import distill_messages
from crl.lab.study.config import load_study
from crl.lab.study.plan import plan_runs
from crl.lab.warm.make import make
from crl.policies import load_chat
from crl.policies.sources import resolve_model
from crl.records import Distillation, Episode, Evaluation, Generation, Operation, Task, Turn, Weights, rows_of
from crl.records.base import R
from crl.run.directory import RunDirectory
from crl.text.outputs import prompt_text
from tests.learning.harness import rows, train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROUNDS = 2
ARMS = ("complementary", "baseline")
SEEN = r"(?:[A-Z]@\d+ )+at p\d+|[pk]\d+"
"""Everything that a realm ever lets see: the first observation, and where the agent stands."""
WARM = {
    "name": "leak", "seed": 5, "threads": 1, "environment": {"kind": "realms", "practice": True, "longest_path": 8},
    "prompts": yaml.safe_load((ROOT / "conf/prompts/realms.yaml").read_text()),
    "miniature": {"width": 32, "layers": 2, "heads": 2},
    "training": {"num_train_epochs": 6, "batch": 8, "learning_rate": 4e-3},
    "actor": {"episodes": 120}, "extractor": {"episodes": 120},
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    """What was made: where the warm start lies, and the run of every arm."""

    warm: Path
    runs: dict[str, RunDirectory]

    def record(self, row_type: type[R], name: str) -> list[R]:
        """Rows of the warm start's record."""
        return rows_of(row_type, pq.ParquetFile(self.warm / "record" / f"{name}.parquet").read())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A warm start and one run an arm, as `crl compare` plans them."""
    place = tmp_path_factory.mktemp("leak")
    base = yaml.safe_load((ROOT / "conf/realms.yaml").read_text())
    method = base["method"]
    method["families"][0] |= {"repeat": 2, "groups": 2}
    method["families"][0]["evaluation_seeds"]["count"] = 6
    for role in ("actor", "extractor"):
        method["roles"][role]["model"] = f"warm:leak/{role}"
    method |= {"prompts": WARM["prompts"], "evaluation": {"every": ROUNDS}}
    method["recipe"] |= {"warm_up_rounds": 0, "extractor_objective": {"batch": 4}}
    study = {
        "name": "leak", "base": "base.yaml", "rounds": ROUNDS, "seeds": [7],
        "seed_keys": ["method.seed", "method.families.*.environment.world"],
        "arms": {arm: {"set": {"method.recipe.kind": arm}} for arm in ARMS},
    }  # fmt: skip
    for name, content in (("warm", WARM), ("base", base), ("study", study)):
        (place / f"{name}.yaml").write_text(yaml.safe_dump(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRL_MODELS", str(place / "models"))
        # It would play two thousand games to say how good the models are, which nothing here asks.
        for measure in ("actor_metrics", "extractor_metrics"):
            patch.setattr(f"crl.lab.warm.make.{measure}", lambda *told, **more: {})
        warm = make(place / "warm.yaml")
        planned = plan_runs(load_study(place / "study.yaml"), place / "runs")
        runs = {each.arm: train(each.experiment, each.path.parent, each.rounds) for each in planned}
        yield Made(warm, runs)


def layouts_of(config: EnvironmentConfig, seeds: Iterable[int]) -> set[str]:
    """First observations of the seeds, drawn again."""
    assert isinstance(config, RealmsConfig)
    drawn = layouts(config)
    return {drawn.of(seed).text() for seed in seeds}


def trained_on(run: RunDirectory) -> list[Task]:
    return rows(run, Task, "plan", range(1, ROUNDS + 1))


def extractor_seeds(made: Made) -> list[int]:
    """Practice seeds of the episodes that the warm start's extractor was taught on."""
    listed = made.record(Distillation, "extractor_distillations")
    return [int(str(row.episode_id).split("-")[-1]) for row in listed]


# -- evaluation grids -------------------------------------------------------------------------------------------------


def test_evaluation_grids_are_no_training_tasks(made):
    for arm, run in made.runs.items():
        tasks = trained_on(run)
        for family in run.method.families:
            mine = [task for task in tasks if task.family == family.name]
            for task in mine:  # drawing again gives what was recorded, so it tells of the evaluated grids too
                assert layouts_of(family.environment, [task.environment_seed]) == {task.first_observation}
            evaluated = {row.environment_seed for row in evaluations(run) if row.family == family.name}
            assert len(evaluated) == family.evaluation_seeds.count
            grids = layouts_of(family.environment, evaluated)
            assert mine and grids and not grids & {task.first_observation for task in tasks}, arm


def test_evaluation_grids_are_in_no_demonstration(made):
    practice = RealmsConfig.model_validate(WARM["environment"])
    taught = made.record(Task, "actor_tasks")
    for task in taught[::20]:
        assert layouts_of(practice, [task.environment_seed]) == {task.first_observation}
    shown = {task.first_observation for task in taught}
    seeds = extractor_seeds(made)
    written_about = {row.generation_id: row for row in made.record(Generation, "extractor_generations")}
    for row, seed in zip(made.record(Distillation, "extractor_distillations"), seeds, strict=True):
        (text,) = layouts_of(practice, [seed])
        assert text in written_about[row.generation_id].prompt
        shown.add(text)
    assert len(shown) > 100
    for run in made.runs.values():
        for family in run.method.families:
            assert not shown & layouts_of(family.environment, {row.environment_seed for row in evaluations(run)})


def evaluations(run: RunDirectory) -> list[Evaluation]:
    return rows(run, Evaluation, "evaluate", (0, ROUNDS))


# -- hidden rules -----------------------------------------------------------------------------------------------------


def test_no_demonstration_follows_the_hidden_rule_of_its_realm(made):
    """What is in force in a realm of practice is in force in that realm of no world, this study's among them."""
    practice = RealmsConfig.model_validate(WARM["environment"])
    taught = made.record(Task, "actor_tasks")
    outputs = {row.generation_id: row.output for row in made.record(Generation, "actor_generations")}
    episodes = {row.episode_id: row for row in made.record(Episode, "actor_episodes")}
    practiced = set()
    for task in taught:
        layout = layouts(practice).of(task.environment_seed)
        assert task.goal == f"r{layout.realm}"
        plan = re.findall(r"([A-Z])@\d+", outputs[episodes[task.episode_id].generation_ids[0]])
        assert plan[:2] == [layout.key, layout.goal], "the plan that is imitated says the rule in force"
        practiced.add((layout.realm, layout.key, layout.goal))
    practiced |= {
        (layout.realm, layout.key, layout.goal)
        for layout in (layouts(practice).of(seed) for seed in extractor_seeds(made))
    }
    assert len(practiced) > 100
    worlds = {family.environment for run in made.runs.values() for family in run.method.families}
    assert {world.world for world in worlds} == {7}, "the world is the seed of the study"
    for world in worlds:
        others = [world.model_copy(update={"world": number}) for number in range(100)]
        hidden = {(world.realm, *hidden_rule(each)) for each in (world, *others)}
        assert len(hidden) > 5 and not hidden & practiced


# -- arms -------------------------------------------------------------------------------------------------------------


def test_arms_begin_alike_and_are_given_alike(made):
    runs = list(made.runs.values())
    recorded = json.loads((made.warm / "warm_start.json").read_text())["models"]
    for arm, run in made.runs.items():
        begun = {row.role: row for row in rows(run, Weights, "initialize", [0]) if row.role in recorded}
        assert set(begun) == ({"actor"} if arm == "baseline" else {"actor", "extractor"})
        assert {role: row.base_digest for role, row in begun.items()}.items() <= recorded.items()
        assert all(row.checkpoint is None for row in begun.values()), "as the warm start left them"
    assert len({json.dumps([family.model_dump() for family in run.method.families]) for run in runs}) == 1
    assert len({run.method.seed for run in runs}) == 1
    budgets = [[(task.round, task.episode_id, task.environment_seed) for task in trained_on(run)] for run in runs]
    assert all(each == budgets[0] for each in budgets), "the same tasks, as many, in the same rounds"
    played = [[row.episode_id for row in rows(run, Episode, "collect", range(1, ROUNDS + 1))] for run in runs]
    assert all(each == [episode_id for _, episode_id, _ in budgets[0]] for each in played)
    arms = [{(row.round, row.family, row.environment_seed, row.condition) for row in evaluations(run)} for run in runs]
    without = [{each for each in found if each[3] == "without_bank"} for found in arms]
    assert without[0] and all(each == without[0] for each in without)
    with_bank = {each[:3] for found in arms for each in found if each[3] == "with_bank"}
    assert with_bank and with_bank <= {each[:3] for each in without[0]}


# -- what the extractor reads -----------------------------------------------------------------------------------------


def test_what_the_extractor_reads_is_the_rendering_of_recorded_rows(made):
    run = made.runs["complementary"]
    chat = load_chat(resolve_model(run.method.role("extractor").model))
    checked = 0
    for number in range(1, ROUNDS + 1):
        written = {row.generation_id: row for row in rows(run, Generation, "distill", [number])}
        of_episode = {row.episode_id: row for row in rows(run, Distillation, "distill", [number])}
        for item in items_of(*played_in(run, number), run.method.recipe.distill):
            messages = distill_messages(
                run.method.prompts["distill"], item.episode, item.turns, run.method.recipe.distill
            )
            row = written.pop(of_episode[item.episode.episode_id].generation_id)
            opening = chat.opening(messages)
            assert row.prompt == prompt_text(messages)
            assert row.token_ids[: len(opening)] == opening and not any(row.loss_mask[: len(opening)])
            assert all(row.loss_mask[len(opening) :]), "what follows is the extractor's own"
            checked += 1
        assert not written, "nothing else was read"
    assert checked == ROUNDS * 32


def test_the_rows_behind_a_prompt_hold_the_truth_only_where_a_model_wrote_it(made):
    """Without what the actor said and the note it was shown, no prompt holds any rule; and the note was written by the
    extractor in an earlier round."""
    run = made.runs["complementary"]
    earlier: set[tuple[str, str]] = set()
    guided = 0
    for number in range(1, ROUNDS + 1):
        for item in items_of(*played_in(run, number), run.method.recipe.distill):
            episode = item.episode
            assert re.fullmatch(r"r\d+", episode.goal)
            assert all(re.fullmatch(SEEN, turn.observation) for turn in item.turns), item.turns
            assert all(turn.action is None or turn.action in ACTIONS for turn in item.turns)
            if episode.experience is not None:
                assert (episode.family, episode.experience) in earlier
                guided += 1
            silent = [dataclasses.replace(turn, output=turn.action or "") for turn in item.turns]
            bare = dataclasses.replace(episode, experiences=[])
            messages = distill_messages(run.method.prompts["distill"], bare, silent, run.method.recipe.distill)
            assert "take" not in prompt_text(messages), "the word that every rule is told with"
        operations = rows(run, Operation, "distill", [number])
        outputs = {row.generation_id: row.output for row in rows(run, Generation, "distill", [number])}
        assert all(row.text is None or row.text in outputs[row.generation_id] for row in operations)
        earlier |= {(row.family, row.text) for row in operations if row.text is not None}
    assert guided >= 8


def played_in(run: RunDirectory, number: int) -> tuple[list[Episode], list[Turn]]:
    return rows(run, Episode, "collect", [number]), rows(run, Turn, "collect", [number])
