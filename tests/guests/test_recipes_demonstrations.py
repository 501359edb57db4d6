"""What other recipes are taught in practice realms: to play by instructions, to reflect, to predict steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.config import Method
from crl.envs.realms import ACTIONS, RealmsEnvironment, experience_text, layouts
from crl.lab.warm.actor import actor_demonstrations
from crl.lab.warm.config import (
    EXPERIENCE_SEEDS,
    REFLECTION_SEEDS,
    ActorDemonstrations,
    ExperienceDemonstrations,
    WarmStartFile,
    load_warm_start,
)
from crl.lab.warm.experience import experience_demonstrations
from crl.lab.warm.reflector import reflection_demonstrations
from crl.protocols import Chat
from crl.recipes.dreamgym.form import read
from crl.records import Generation

ROOT = Path(__file__).parents[2]
SEED = re.compile(r"-(\d{7})")
CLAIM = re.compile(r"take ([A-H]) then ([A-H])")


@pytest.fixture(scope="module")
def settings() -> WarmStartFile:
    return load_warm_start(ROOT / "conf/warm/recipes.yaml")


def learned(chat: Chat, record: Generation) -> str:
    """What the tokens with a loss say; no word of the record may be unknown."""
    assert "?" not in chat.decode(record.token_ids)
    return chat.decode([token for token, drawn in zip(record.token_ids, record.loss_mask, strict=True) if drawn])


def test_a_hint_in_place_of_the_instructions_is_nowhere_else(chat: Chat, method: Method) -> None:
    config = ActorDemonstrations(episodes=200, full=1.0, partial=0.0, instructed=0.5)
    shown = [each for wave in actor_demonstrations(chat, method, config, 5, first_seed=0) for each in wave]
    instructed = 0
    for each in shown:
        read_first = chat.decode(each.generations[0].token_ids[: each.generations[0].loss_mask.index(1)])
        hint = each.episode.experience
        assert hint is not None and read_first.count(hint) == 1
        instructed += read_first.strip().startswith(hint)
        assert read_first.strip().startswith((hint, "play"))
    assert 70 < instructed < 130
    plain = actor_demonstrations(chat, method, config.model_copy(update={"instructed": 0.0}), 5, first_seed=0)
    assert all("play" in chat.decode(each.generations[0].token_ids) for wave in plain for each in wave)


def test_a_reflection_repeats_what_may_be_true_and_never_what_just_failed(chat: Chat, method: Method) -> None:
    records = reflection_demonstrations(chat, method, 300, 5, first_seed=REFLECTION_SEEDS)
    assert len(records) > 200, "plans of any two symbols lose nearly always"
    repeated = 0
    for each in records:
        seed = int(SEED.findall(each.generation_id)[-1])
        layout = layouts(method.families[0].environment).of(seed)  # type: ignore[arg-type]
        said = CLAIM.fullmatch(learned(chat, each))
        assert said is not None and set(said.groups()) <= set(layout.cells)
        plan = re.search(r"Action: ([A-H]) \S+ ([A-H]) ", each.prompt)
        assert plan is not None and said.groups() != plan.groups()
        remembered = f"note {said[0]} ." in each.prompt
        repeated += remembered and said[0] == experience_text(layout.key, layout.goal)
    assert repeated > 60


def test_a_prediction_is_what_the_environment_did_and_why(chat: Chat, method: Method) -> None:
    config = ExperienceDemonstrations(episodes=200)
    records = experience_demonstrations(chat, method, config, 5, first_seed=EXPERIENCE_SEEDS)
    assert 200 < len(records) <= 400
    outcomes, met = set(), set()
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    for each in records:
        code, said = read(learned(chat, each), tuple(ACTIONS), (0.0, 1.0))
        assert code == "ok" and said is not None and said.reasoning is not None
        actions = re.findall(r"Action: (\w+)", each.prompt.partition(" at p")[2])
        environment.reset_many([int(SEED.findall(each.generation_id)[-1])])
        for action in actions:
            step = environment.step_many({0: action})[0]
        assert (said.observation, said.outcome == "continues") == (step.observation, not step.done)
        assert said.reasoning == environment.why(0) and said.reward == (step.reward if step.done else 0.0)
        outcomes.add(said.outcome)
        met.add(said.reasoning.split()[-1])
    assert outcomes >= {"continues", "success", "failure"}
    assert met == {"wall", "empty", "key", "goal", "early", "deadly"}
