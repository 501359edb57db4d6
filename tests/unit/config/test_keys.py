"""Dotted keys as data: where each leads in the schema and in an experiment."""

from __future__ import annotations

import pytest

from crl.config.keys import FIRST_KEYS, field_schema, inlined, models, value_at
from crl.config.load import load_experiment
from tests.tiny_run import CONFIG, ROOT


def test_the_first_keys_are_in_every_experiment_and_have_a_description() -> None:
    data = load_experiment(ROOT / CONFIG).model_dump(mode="json")
    for key in FIRST_KEYS:
        assert inlined(field_schema(key))["description"], key
        value_at(data, key)
    assert value_at(data, "name") == "tiny"
    assert value_at(data, "method.families.0.groups") == data["method"]["families"][0]["groups"]


def test_a_key_leads_through_references_lists_and_unions() -> None:
    assert field_schema("method.seed")["type"] == "integer"
    assert field_schema("method.families.3.environment.max_turns")["minimum"] == 1
    assert field_schema("method.recipe.warm_start.num_train_epochs")["type"] == "integer"
    whole = inlined(field_schema("method.families"))
    assert "$ref" not in str(whole) and "oneOf" not in str(whole)
    members = [member["properties"] for member in whole["items"]["properties"]["environment"]["anyOf"]]
    assert {"sokoban", "shrines"} <= {member["kind"].get("const") for member in members}
    assert all(member["kind"]["description"] for member in members)


@pytest.mark.parametrize("key", ["method.sede", "method.seed.more", "method.families.environment", "runtime.", ""])
def test_a_key_that_does_not_exist_is_an_error(key: str) -> None:
    with pytest.raises(KeyError):
        field_schema(key)
    with pytest.raises(KeyError):
        value_at(load_experiment(ROOT / CONFIG).model_dump(mode="json"), key)


def test_every_model_comes_before_those_that_its_fields_hold() -> None:
    names = list(models())
    assert names[0] == "Experiment"
    for earlier, later in (
        ("Method", "FamilyConfig"),
        ("RolloutConfig", "SearchAndAskConfig"),
        ("RoleConfig", "LoraConfig"),
    ):
        assert names.index(earlier) < names.index(later)
