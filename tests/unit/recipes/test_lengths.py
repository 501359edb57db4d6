"""Lengths for estimates: of games whose tokens are counted here again, piece by piece."""

from __future__ import annotations

from statistics import fmean

import pytest

from crl.config import Method
from crl.config.load import load_experiment
from crl.envs import make_environment
from crl.policies import load_chat, resolve_model
from crl.preflight.estimate import estimate, typical_work
from crl.rollout.prompts import opened
from crl.rounds.recipe import recipe_of
from tests import tiny_run

TINY = tiny_run.ROOT / "conf/tiny.yaml"
ONE_TURN = {
    "method.families.0.environment.max_turns": 1,
    "method.families.0.environment.held_out_moves": 1,
    "method.rollout.group_size": 4,
    "method.roles.actor.deepspeed.micro_batch": 8,
}


def prompts(method: Method) -> list[int]:
    """Tokens of the first prompts of training seeds 0 and 1."""
    family = method.families[0]
    chat = load_chat(resolve_model(method.role("actor").model))
    starts = make_environment(family).reset_many([0, 1])
    return [len(opened(chat, method.prompts["actor"], each, experience=None, placement="user")[1]) for each in starts]


def test_a_constrained_actor_writes_its_action_and_the_end_of_its_turn() -> None:
    method = load_experiment(TINY, ONE_TURN | {"method.roles.actor.sampling.constrain": "actions"}).method
    chat = load_chat(resolve_model(method.role("actor").model))
    actor = recipe_of(method).typical(method)["actor"]
    first = prompts(method)
    said = {len(chat.answer(action)) for action in ("up", "down", "left", "right")}
    assert min(said) <= actor.sampled <= max(said)
    assert actor.tokens == pytest.approx(fmean(first) + actor.sampled)
    # Members read the prompt of their group once; the prompts of two groups begin alike.
    assert max(first) / 8 < actor.read - actor.sampled < sum(first) / 8
    # All are one micro-batch: both prompts once at most, and of each game its answer but for the token only predicted.
    assert max(first) / 8 < actor.computed <= sum(first) / 8 + actor.sampled - 1


def test_free_answers_count_as_many_tokens_as_they_may_have() -> None:
    method = load_experiment(TINY, ONE_TURN | {"method.roles.actor.sampling.max_new_tokens": 20}).method
    found = recipe_of(method).typical(method)
    assert found["actor"].sampled == 20
    assert found["actor"].tokens == pytest.approx(fmean(prompts(method)) + 20)
    assert found["extractor"].sampled == method.role("extractor").sampling.max_new_tokens
    assert found["extractor"].tokens > found["extractor"].sampled + 20, "it reads the game"


def test_work_by_lengths_is_below_that_of_full_contexts() -> None:
    experiment = load_experiment(TINY)
    full, typical = estimate(experiment).work, typical_work(experiment)
    assert set(full) == set(typical) == {"actor", "extractor"}
    for name, work in typical.items():
        assert 0 < work.tokens < full[name].tokens
        assert 0 < work.sampling_flops < full[name].sampling_flops
        assert 0 < work.update_flops < full[name].update_flops
        assert 0 < work.weight_bytes <= full[name].weight_bytes


def test_a_model_that_is_elsewhere_is_not_measured() -> None:
    assert typical_work(load_experiment(tiny_run.ROOT / "conf/scale/qwen-7b.yaml")) == {}
