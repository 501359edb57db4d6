"""`base`: a role with an adapter of its own on the frozen base of another."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from crl.config import Method, RoleConfig
from crl.errors import BadInput
from crl.rounds.recipe import recipe_of
from tests.tiny_run import experiment

ACTOR = {"model": "tiny", "dtype": "bfloat16", "context": 512, "lora": {"r": 8}}
EXTRACTOR = {"base": "actor", "context": 256, "lora": {"r": 4}, "optimizer": {"learning_rate": 0.5}}


def method(**roles: Any) -> Method:
    data = experiment().method.model_dump()
    return Method.model_validate({**data, "roles": {"actor": ACTOR, "extractor": EXTRACTOR, **roles}})


def test_the_model_is_the_others_and_all_else_its_own() -> None:
    made = method()
    actor, extractor = made.role("actor"), made.role("extractor")
    assert (extractor.model, extractor.dtype, extractor.engine) == ("tiny", "bfloat16", actor.engine)
    assert extractor.lora is not None and actor.lora is not None and (extractor.lora.r, actor.lora.r) == (4, 8)
    assert (extractor.context, extractor.optimizer.learning_rate) == (256, 0.5) != (512, actor.optimizer.learning_rate)
    assert made.owners() == made.trained() == ("actor", "extractor")
    names = [stage.name for stage in recipe_of(made).stages]
    assert {"update_actor", "update_extractor"} <= {*names}
    assert Method.model_validate(made.model_dump(mode="json")) == made
    assert made.base("actor") == made.base("extractor") == "actor"


def test_a_base_with_one_role_on_it_is_not_shared() -> None:
    assert method(extractor={**ACTOR, "lora": {"r": 4}}).base("actor") is None
    data = method().model_dump()
    alone = Method.model_validate({**data, "recipe": {"kind": "baseline"}})
    assert alone.base("actor") is None, "its recipe works with the actor alone"


def test_a_third_role_may_have_the_weights_of_one_with_a_base() -> None:
    made = method(critic={"weights": "extractor", "context": 64})
    critic = made.role("critic")
    assert (made.owner("critic"), critic.model, critic.context) == ("extractor", "tiny", 64)
    assert critic.lora == made.role("extractor").lora and made.base("critic") == "actor"


def test_methods_without_a_base_have_the_digest_that_they_had() -> None:
    assert "base" not in RoleConfig().model_dump() and RoleConfig(base="actor").model_dump()["base"] == "actor"


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ({"extractor": {**EXTRACTOR, "base": "nobody"}}, "expected a role with a model of its own: actor"),
        ({"extractor": {**EXTRACTOR, "base": "extractor"}}, "expected a role with a model of its own: actor"),
        ({"critic": {"base": "extractor", "lora": {}}}, "expected a role with a model of its own: actor"),
        ({"critic": {"weights": "actor"}, "extractor": {"base": "critic", "lora": {}}}, "a model of its own: actor"),
        ({"extractor": {**EXTRACTOR, "weights": "actor"}}, "weights is actor and base is actor: set one"),
        ({"extractor": {"base": "actor", "weights": "actor"}}, "weights is actor and base is actor: set one"),
        ({"extractor": {**EXTRACTOR, "model": "other/model"}}, "base is that of actor, so model is set there"),
        ({"extractor": {**EXTRACTOR, "dtype": "bfloat16", "engine": "vllm"}}, "so dtype, engine is set there"),
    ],
)
def test_bases_that_cannot_be_shared_are_refused(roles: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        method(**roles)


@pytest.mark.parametrize("role", ["actor", "extractor"])
@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [("lora", None, "it trains full weights"), ("deepspeed", {"zero_stage": 3}, "ZeRO-3 divides a base")],
)
def test_a_base_that_would_not_stay_as_it_is_is_refused(role: str, setting: str, value: Any, problem: str) -> None:
    before = {"actor": ACTOR, "extractor": EXTRACTOR}[role]
    with pytest.raises(BadInput, match=problem) as caught:
        method(**{role: {**before, setting: value}})
    assert (caught.value.where or "").startswith(f"method.roles.{role}.{setting}")
    assert method(**{role: {**before, "deepspeed": {"zero_stage": 2}}}).base(role) == "actor"
