"""Actor and extractor on one set of weights: one update trains what both wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from crl.config import Method, RoleConfig
from crl.errors import BadInput
from crl.records import Sample, Weights, rows_of
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from tests.tiny_run import NAME, crl, experiment, train

SHARED = "{weights: actor, context: 2048, sampling: {max_new_tokens: 48}}"
CHANGES = {
    "method__roles__extractor": SHARED,
    # One supervised start: the form of notes. Notes that are used and those that are malformed then earn differently.
    "method__recipe__warm_start__actor_episodes": 0,
    "method__recipe__extractor_objective__batch": 4,
    "method__recipe__extractor_objective__baseline": "all",
}


def changed(**roles: Any) -> Method:
    data = experiment().method.model_dump()
    data["recipe"]["warm_start"] = None
    return Method.model_validate({**data, "roles": {**data["roles"], **roles}})


def test_what_belongs_to_the_weights_is_the_owners() -> None:
    method = changed(extractor={"weights": "actor", "context": 128})
    assert method.owner("extractor") == "actor" and method.owners() == ("actor",) == method.trained()
    role, owner = method.role("extractor"), method.role("actor")
    assert (role.model, role.optimizer, role.lora) == (owner.model, owner.optimizer, owner.lora)
    assert role.context == 128 != owner.context
    names = [stage.name for stage in recipe_of(method).stages]
    assert [name for name in names if name.startswith("update_")] == ["update_actor"]
    assert Method.model_validate(method.model_dump(mode="json")) == method


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        ({"extractor": {"weights": "nobody"}}, "no such role; expected a role with weights of its own: actor"),
        ({"extractor": {"weights": "nobody", "lora": {"r": 4}}}, "'nobody', and there is no such role"),
        ({"extractor": {"weights": "actor"}, "actor": {"weights": "extractor"}}, "weights of its own"),
        ({"extractor": {"weights": "actor", "lora": {"r": 4}}}, "so lora is set there"),
    ],
)
def test_weights_that_cannot_be_shared_are_refused(roles: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        changed(**roles)


def test_two_supervised_starts_of_one_set_are_refused() -> None:
    data = experiment().method.model_dump()
    with pytest.raises(BadInput, match="share their weights") as caught:
        Method.model_validate({**data, "roles": {**data["roles"], "extractor": {"weights": "actor"}}})
    assert caught.value.where == "method.recipe.warm_start"
    assert RoleConfig(weights="actor").model == RoleConfig().model, "defaults are no settings of its own"


@pytest.mark.slow  # tests/outside trains a third role on the actor's weights
def test_a_run_on_one_set_of_weights_trains_both_roles_in_one_update(tmp_path: Path) -> None:
    crl(tmp_path, *train(2, **CHANGES))
    run = RunDirectory.open(tmp_path / NAME)
    [row] = rows_of(Weights, run.read(2, "update_actor", Weights))
    assert row.role == "actor" and row.updates > 0
    assert {weights.role for weights in rows_of(Weights, run.read(0, "initialize", Weights))} == {"actor", "embedder"}
    samples = [sample for number in (1, 2) for sample in rows_of(Sample, run.read(number, "credit", Sample))]
    assert {sample.role for sample in samples} == {"actor", "extractor"}
    assert "intact" in crl(tmp_path, "verify", NAME).stdout
