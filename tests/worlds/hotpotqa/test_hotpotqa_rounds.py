"""Questions with search in whole rounds: prompts in form, Experiential RL with its feedback, tiny models, SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config import FamilyConfig, PromptConfig
from crl.config.load import load_experiment
from crl.extractor.parse import parse_output
from crl.extractor.prompts import check_prompts as check_extractor_prompts
from crl.recipes.erl.prompts import check_reflect_prompt
from crl.records import Episode, Evaluation, Turn
from crl.rollout.actions import parse_action as action_in
from crl.rollout.prompts import check_prompts
from crl.rounds.ready import check_placeholders
from crl.rounds.recipe import recipe_of
from crl.worlds.hotpotqa import HotpotQAConfig
from crl.worlds.hotpotqa.environment import FORM, parse_action
from crl.worlds.hotpotqa.files import own_questions, paragraphs_of
from tests.learning.harness import rows, train
from tests.recipes.erl.erl_played import ErlServices, experiment
from tests.unit.recipes.played import Played, Policy

CONF = Path(__file__).parents[3] / "conf"
OWN = {"kind": "hotpotqa", "results": 1, "max_turns": 3}
ANSWERS = {question.text: question for side in ("train", "held_out") for question in own_questions(side)}  # type: ignore[arg-type]
ROUNDS = 2


def prompts(name: str) -> dict[str, PromptConfig]:
    content = yaml.safe_load((CONF / f"prompts/{name}.yaml").read_text(encoding="utf-8"))
    return {key: PromptConfig.model_validate(each) for key, each in content.items()}


def test_every_example_is_in_form() -> None:
    found = prompts("hotpotqa")
    check_prompts(found)
    check_extractor_prompts(found)
    for exchange in found["actor"].examples:
        answer = action_in(exchange.assistant, FORM, "word")
        assert parse_action(answer) is not None, exchange
    for exchange in found["distill"].examples:
        guided = "Advice used: none" not in exchange.user
        told = parse_output(exchange.assistant, format="lines", max_operations=1, max_characters=200, guided=guided)
        assert told.reason_code == "ok", exchange
    for exchange in found["merge"].examples:
        told = parse_output(
            exchange.assistant, format="lines", max_operations=3, max_characters=200, kind="merge", source_count=3
        )
        assert told.reason_code == "ok"


def test_the_experiments_are_those_of_the_paper_and_of_two_cores() -> None:
    check_placeholders(load_experiment(CONF / "hotpotqa.yaml").method)
    method = load_experiment(CONF / "paper/erl_hotpotqa.yaml").method
    check_prompts(method.prompts)
    check_reflect_prompt(method.prompts["reflect"], memory=True)
    lake = load_experiment(CONF / "paper/erl_frozenlake.yaml").method
    assert method.recipe == lake.recipe and method.roles == lake.roles and method.rollout == lake.rollout
    family, of_lake = method.families[0], lake.families[0]
    assert (family.groups, family.train_seeds, family.evaluation_seeds) == (
        of_lake.groups, of_lake.train_seeds, of_lake.evaluation_seeds,
    )  # fmt: skip
    environment = family.environment
    assert isinstance(environment, HotpotQAConfig) and (environment.max_turns, environment.min_f1) == (5, 0.3)


def test_the_family_of_the_page_is_one_and_its_metrics_are_true() -> None:
    page = (CONF.parent / "docs/hotpotqa.md").read_text(encoding="utf-8")
    block = page.split('```yaml title="family.yaml"\n')[1].split("```")[0]
    environment = FamilyConfig.model_validate(yaml.safe_load(block)).environment
    assert isinstance(environment, HotpotQAConfig) and environment.scope == "file"
    for side in ("train", "held_out"):
        questions = own_questions(side)  # type: ignore[arg-type]
        assert f"{side}.yaml`: {len(questions)} questions, {len(paragraphs_of(questions))} paragraphs |" in page


def actor(read: str, generator: np.random.Generator) -> str:
    """With good instructions it searches and answers; by its own it answers with the words of the question."""
    question = next(each for text, each in ANSWERS.items() if text in read)
    if not read.startswith("win"):
        return f"answer[{question.text}]"
    return f"answer[{question.answer}]" if "Found for" in read else f"search[{question.support[0]}]"


@pytest.mark.slow
def test_a_reflection_reads_how_near_an_answer_was_and_what_was_found(tmp_path: Path) -> None:
    made = experiment(method__families__0__environment=OWN, method__families__0__evaluation_seeds__count=2)
    services = ErlServices(made)
    services._policies["actor"] = Policy(services._noting("actor", actor))
    run = Played(tmp_path, made, 1, services)
    first = run.rows(Episode, "collect", 1)
    assert first and not any(episode.success for episode in first)
    said = {turn.feedback for turn in run.rows(Turn, "collect", 1)}
    assert all(text is not None and "Of the 2 paragraphs that it follows from, 0 were found." in text for text in said)
    for episode in first:
        gold = ANSWERS[episode.goal].answer
        reads = [prompt for prompt in services.read["reflector"] if f"answer[{episode.goal}]" in prompt]
        assert reads and all("0 were found." in prompt and f"answer[{gold}]" not in prompt for prompt in reads)
    further = run.rows(Episode, "retry", 1)
    assert {episode.reward for episode in further if episode.success} == {1.0}, "good instructions lead to the answer"


@pytest.mark.slow
def test_tiny_models_train_two_rounds_on_it(tmp_path: Path) -> None:
    cut = {
        "method.families.0.environment": {**OWN, "max_turns": 2, "paragraph_characters": 40},
        "method.families.0.groups": 2,
        "method.families.0.evaluation_seeds.count": 2,
        "method.roles.actor.sampling.max_new_tokens": 12,
        "method.roles.extractor.sampling.max_new_tokens": 24,
        "method.recipe.warm_start": None,
        "method.rollout.group_size": 2,
    }
    run = train(load_experiment(CONF / "tiny.yaml", cut), tmp_path, ROUNDS)
    played = rows(run, Episode, "collect", range(1, ROUNDS + 1))
    assert len(played) == 2 * 2 * ROUNDS and {episode.error for episode in played} == {None}
    assert rows(run, Evaluation, "evaluate", [ROUNDS])
    assert verify(run.path) == [] == problems_of(run, recipe_of(run.method))


@pytest.mark.slow
def test_smollm2_plays_two_rounds_of_the_experiment_that_ships(tmp_path: Path) -> None:
    cut: dict[str, Any] = {
        "method.families.0.groups": 1,
        "method.families.0.evaluation_seeds.count": 4,
        "method.recipe.warm_start.actor_episodes": 24,
        "method.recipe.warm_start.extractor_episodes": 4,
        "method.evaluation.every": ROUNDS,
        "method.threads": 1,
    }
    run = train(load_experiment(CONF / "hotpotqa.yaml", cut), tmp_path, ROUNDS)
    episodes = rows(run, Episode, "collect", range(1, ROUNDS + 1))
    assert len(episodes) == 4 * ROUNDS and {episode.error for episode in episodes} == {None}
    turns = rows(run, Turn, "collect", range(1, ROUNDS + 1))
    assert sum(turn.valid for turn in turns) > 0.8 * len(turns), "the warm start teaches the form"
    assert not {episode.stop_reason for episode in episodes} & {"context_limit", "error"}
    assert verify(run.path) == [] and not problems_of(run, recipe_of(run.method))
