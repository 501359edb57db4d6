"""The paper's settings (conf/paper): what can be checked offline is ready, and the method runs on small models.

Models, lengths and counts are cut; the switches, the prompts and the environment are those of the file. The extractor's
template begins a thought and drops thoughts from history, the embedder is a sentence-transformers directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config import Experiment
from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.policies import resolve_model
from crl.preflight import check_ready, checks
from crl.protocols import Policy
from crl.records import (
    BankEvent,
    Distillation,
    Episode,
    Evaluation,
    Generation,
    Question,
    Resemblance,
    Retrieval,
    Sample,
    Weights,
)
from crl.rounds.ready import check_placeholders
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.learning.harness import rows, train
from tests.unit.extractor.test_thinking import write_thinking
from tests.unit.policies.test_model_embedder import write_embedder
from tests.unit.recipes.test_asking_run import Script

PAPER = Path(__file__).parents[3] / "conf/paper/minihack_room.yaml"
ROUNDS = 2
"""Round 1 fills the bank, round 2 is played with it."""
CUT: dict[str, Any] = {
    "method.families.0.groups": 2,
    "method.families.0.train_seeds": {"start": 45, "count": 2},  # rooms whose stairs are beside the agent
    "method.families.0.environment.max_turns": 3,
    "method.families.0.evaluation_seeds.count": 1,
    "method.rollout.group_size": 4,
    "method.recipe.distill.max_characters": 200,
    "method.recipe.merge.every": ROUNDS,
    "method.recipe.extractor_objective.batch": 4,
    "method.recipe.warm_up_rounds": 0,
    "method.evaluation.every": 0,
    "method.threads": 1,
    "runtime.min_free_gigabytes": 0,
    "runtime.gpus": None,
}
SMALL: dict[str, Any] = {
    "context": 2048,
    "dtype": "float32",
    "sampling.max_new_tokens": 128,
    "deepspeed": {"zero_stage": 0, "ranks": 1, "micro_batch": 2},
}
COURSES = ("north", "south", "east", "west", "northeast", "southwest", "northwest", "southeast")


def small(directory: Path, **more: Any) -> Experiment:
    """The experiment of the file with the small models written below `directory`; `more` settings of the method."""
    thinking = write_thinking(directory / "thinking")
    embedder = write_embedder(resolve_model("tiny").path, directory / "embedder", longest=512)
    overrides = {
        **CUT,
        **{f"method.roles.{role}.{name}": value for role in ("actor", "extractor") for name, value in SMALL.items()},
        "method.roles.actor.model": "tiny",
        "method.roles.extractor.model": str(thinking),
        "method.recipe.retrieval.embedder": str(embedder),
        **{f"method.{name}": value for name, value in more.items()},
    }
    return load_experiment(PAPER, overrides)


def act(prompt: str, turn: int, row: int) -> str:
    """Who was shown an experience asks first; each row then takes a course of its own."""
    if "Experience from earlier episodes" in prompt and turn == 0:
        return f"Which way? <action>no</action> <ask>Is it {COURSES[row]} of here?</ask>"
    return f"<think>not <action>wait</action></think> I go. <action>{COURSES[row]}</action>"


def write(prompt: str, turn: int, row: int) -> str:
    """An extractor's output in the paper's JSON: a note about the episode, merged entries, or an answer."""
    if "Question:" in prompt:
        return f"As the experience says, case {row}."
    if "Trajectory:" in prompt:
        case = "".join(chr(ord("a") + int(digit)) for digit in str(sum(map(ord, prompt)) % 9973))
        text = f"Case {case}: the stairs are close, step on them at once."
        return json.dumps({"operations": [{"operation": "add", "experience": text}]})
    merged = {"operation": "merge", "entries": [1, 2], "experience": "Step on stairs that are close."}
    return json.dumps({"operations": [merged]})


class Scripted(EngineServices):
    """The real chat formats and updates; what the two roles say is scripted."""

    def policy(self, role: str, weights: Weights) -> Policy:
        real = super().policy(role, weights)
        return Script(real, act if role == "actor" else write)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    root = tmp_path_factory.mktemp("paper")
    made = small(root)
    check_ready(made, root / "run", ROUNDS)
    run = RunDirectory.create_or_open(made, root / "runs")
    recipe = recipe_of(run.method)
    services = Scripted(run)
    with Lease.acquire(run.path, seconds=600) as lease:
        for number in range(ROUNDS + 1):
            for stage in recipe.stages_of(run.method, number):
                services.begin(number, stage.name, None)
                execute_stage(run, recipe, number, stage.name, attempt=Attempt(token=lease.token), services=services)
    services.close()
    yield run


def test_what_can_be_checked_without_the_models_is_ready() -> None:
    made = load_experiment(PAPER)
    check_placeholders(made.method)
    names = []
    for name, check in checks(made):
        check()
        names.append(name)
    assert {
        "method.roles.actor.model",
        "method.roles.extractor.model",
        "the embedder of the recipe",
        f"environment of family {made.method.families[0].name}",
    } <= set(names)


@pytest.mark.slow
def test_a_guided_episode_has_the_experience_in_its_system_message_and_asks_and_a_free_one_neither(
    run: RunDirectory,
) -> None:
    episodes = {each.generation_ids[0]: each for each in rows(run, Episode, "collect", [ROUNDS])}
    shown = {each.generation_id: each for each in rows(run, Generation, "collect", [ROUNDS]) if each.kind == "episode"}
    assert {each.guided for each in episodes.values()} == {True, False}
    for name, episode in episodes.items():
        system, _, user = shown[name].prompt.partition("Task: ")
        assert "Experience" not in user
        assert (f"Experience from earlier episodes:\n{episode.experience}" in system) is episode.guided
        assert ("<ask>your question</ask>" in system) is episode.guided
    asked = rows(run, Question, "collect", [ROUNDS])
    assert {each.reason_code for each in asked} == {"ok"}
    assert {each.episode_id for each in asked} == {each.episode_id for each in episodes.values() if each.guided}
    assert all(str(each.answer).startswith("As the experience says") for each in asked)


@pytest.mark.slow
def test_entries_are_found_by_the_models_embedder_and_merged_over_the_bank(run: RunDirectory) -> None:
    embedder = next(each for each in rows(run, Weights, "initialize", [0]) if each.role == "embedder")
    assert embedder.source == run.method.recipe.retrieval.embedder
    found = rows(run, Retrieval, "plan", [ROUNDS])
    assert found and len({round(each.similarity, 6) for each in found}) > 1
    merges = rows(run, Distillation, "merge", [ROUNDS])
    assert {each.reason_code for each in merges} == {"ok"} and {each.verdict for each in merges} == {"merge"}
    events = rows(run, BankEvent, "consolidate", range(1, ROUNDS + 1))
    assert "merge" in {each.kind for each in events}
    close = rows(run, Resemblance, "distill", range(1, ROUNDS + 1))
    assert close and "near_duplicate" in {each.reason for each in events}, "notes that differ in one word alone"


@pytest.mark.slow
def test_experiences_and_answers_are_trained_with_their_thoughts_and_both_roles_are_updated(run: RunDirectory) -> None:
    samples = [each for each in rows(run, Sample, "credit", [ROUNDS]) if each.role == "extractor"]
    assert {each.source for each in samples} == {f"{1:04d}/distill", f"{ROUNDS:04d}/collect"}
    records = {
        each.generation_id: each
        for stage, number in (("distill", 1), ("collect", ROUNDS))
        for each in rows(run, Generation, stage, [number])
    }
    assert all("</think>" in records[each.generation_id].output for each in samples)
    assert all(each.loss_mask == records[each.generation_id].loss_mask for each in samples)
    for role in ("actor", "extractor"):
        (weights,) = rows(run, Weights, f"update_{role}", [ROUNDS])
        assert weights.updates > 0
    assert verify(run.path) == [] == problems_of(run, recipe_of(run.method))


@pytest.mark.slow
def test_a_round_of_models_that_know_nothing_leaves_a_sound_record(tmp_path: Path) -> None:
    """Nothing is scripted: what random weights write is no action and no operation, and every stage says so."""
    run = train(small(tmp_path, **{"evaluation.every": 1}), tmp_path / "runs", 1)
    assert {each.kind for each in rows(run, Generation, "collect", [1])} == {"episode"}
    assert {each.reason_code for each in rows(run, Distillation, "distill", [1])} >= {"unfinished_thought"}
    assert rows(run, Evaluation, "evaluate", [1])
    assert verify(run.path) == [] == problems_of(run, recipe_of(run.method))
