"""The form: what the schema of the deployments offers and refuses, and what the run makes of values. No server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.hydration import HydrationContext

import flows  # noqa: F401  (first: it turns Prefect's telemetry off)
from crl.config import Experiment, Runtime
from crl.config.keys import FIRST_KEYS, value_at
from crl.config.load import load_experiment
from crl.errors import BadInput
from flows.parameters import experiment_from, runtime_from
from flows.schedule import FILL_IN, meant
from tests.tiny_run import ROOT
from tests.unit.report.builder import build_run


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """What `prefect deploy` stores of the flow `train`."""
    from prefect.utilities.callables import parameter_schema

    from flows.train import train

    return parameter_schema(train).model_dump()


def refused(schema: dict[str, Any], **parameters: Any) -> str | None:
    """What the server says to parameters; None where it takes them."""
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    try:
        validate(parameters, schema, raise_on_error=True)
    except ValidationError as error:
        return str(error)
    return None


def fields() -> dict[str, Any]:
    """The fields of an experiment as JSON, its prompts by name."""
    experiment = load_experiment(ROOT / "conf" / "quickstart.yaml").model_dump(mode="json")
    return {**experiment, "name": "mine", "method": {**experiment["method"], "prompts": "shrines"}}


def test_the_form_offers_the_files_of_conf_another_file_or_the_fields(schema: dict[str, Any]) -> None:
    offered, another, inline = schema["properties"]["experiment"]["anyOf"]
    assert {"conf/quickstart.yaml", "conf/tiny.yaml", "conf/paper/sokoban.yaml"} <= set(offered["enum"])
    assert not [name for name in offered["enum"] if "prompts" in name or "deepspeed" in name]
    assert all((ROOT / name).is_file() for name in offered["enum"])
    assert (another["type"], another["title"]) == ("string", "Another file")
    assert (inline["type"], inline["title"]) == ("object", "Fields as JSON")
    assert schema["properties"]["experiment"]["default"] == "conf/quickstart.yaml"


def test_the_settings_are_the_keys_that_people_change_first_each_empty_or_closed(schema: dict[str, Any]) -> None:
    assert list(schema["properties"]) == ["experiment", "rounds", "settings", "overrides"]
    for name, field in schema["properties"].items():
        assert field.get("description"), name
    settings = schema["properties"]["settings"]["properties"]
    assert tuple(sorted(settings, key=lambda key: settings[key]["position"])) == FIRST_KEYS
    for key, field in settings.items():
        assert field["description"] and field["title"] == key
        assert field.get("default") is None, f"{key}: an empty field leaves what the file says"
    for closed in ("method.families",):
        assert settings[closed]["anyOf"][-1] == {"type": "null", "title": "not set here"}
    # What only some values of the parameter refer to, the pages do not find; and they know no `oneOf`.
    assert "$ref" not in str(settings) and "oneOf" not in str(settings)
    assert settings["method.prompts"]["enum"] == sorted(path.stem for path in (ROOT / "conf/prompts").glob("*.yaml"))


def test_an_empty_setting_leaves_what_the_file_says() -> None:
    expected = load_experiment(ROOT / "conf" / "quickstart.yaml")
    assert experiment_from("conf/quickstart.yaml", {"method.families": None}) == expected
    changed = experiment_from("conf/quickstart.yaml", {"name": "mine", "method.seed": 5, "method.families": None})
    assert (changed.name, changed.method.seed, changed.method.families) == ("mine", 5, expected.method.families)


def test_settings_apply_before_overrides_and_a_group_replaces_that_of_the_file() -> None:
    family = {"name": "only", "environment": {"kind": "shrines", "shrine": 2}}
    settings = {"method.families": [family], "method.recipe.bank.capacity": 7}
    changed = experiment_from("conf/quickstart.yaml", settings, {"method.recipe.bank.capacity": 8})
    assert [each.name for each in changed.method.families] == ["only"]
    assert changed.method.recipe.bank.capacity == 8


DEPLOYED: dict[str, Any] = {
    "experiment": "conf/tiny.yaml",
    "rounds": 1,
    "settings": {"name": "mine", "method.seed": 5, "method.families": None},
    "overrides": {"method.recipe.bank.capacity": 40, "method.families.0.groups": 8, "runtime.retries": 1},
}
"""As somebody has filled in the form of a deployment."""
UNTOUCHED: dict[str, Any] = {"overrides": {"__prefect_kind": "json"}, "settings": {"method.families": None}}
"""What the dialog of a schedule sends where nothing but the time was filled in."""
ONLY = {"name": "only", "environment": {"kind": "frozenlake"}, "groups": 3}
FILE = "as in the file"
BANK, CAPACITY = "method.recipe.bank", "method.recipe.bank.capacity"
VARIABLE = {"__prefect_kind": "workspace_variable", "variable_name": "gone"}


def as_json(value: Any) -> dict[str, Any]:
    """A field of the form under "Use JSON Input"."""
    return {"__prefect_kind": "json", "value": json.dumps(value)}


def scheduled(parameters: dict[str, Any], deployed: dict[str, Any] = DEPLOYED) -> dict[str, Any]:
    """What a run of a schedule with these parameters trains: its experiment as plain data, and the rounds."""
    found = meant(deployed, {**UNTOUCHED, **parameters}, HydrationContext(**FILL_IN))
    rounds = found.pop("rounds")
    return {**experiment_from(found.pop("experiment"), **found).model_dump(mode="json"), "rounds": rounds}


@pytest.mark.parametrize(
    ("parameters", "changed"),
    [
        ({}, {}),
        ({"settings": {}}, {}),
        ({"settings": None, "overrides": None, "experiment": None, "rounds": None}, {}),
        ({"settings": {"__prefect_kind": "json"}, "experiment": {"__prefect_kind": "json"}}, {}),
        ({"settings": {"method.seed": None, "name": None}}, {}),
        ({"settings": {"method.seed": {"__prefect_kind": "json"}}}, {}),
        ({"overrides": as_json({})}, {}),
        ({"rounds": as_json(None)}, {}),
        ({"rounds": 4}, {"rounds": 4}),
        ({"rounds": as_json(4)}, {"rounds": 4}),
        ({"settings": {"method.seed": 9, "method.families": None}}, {"method.seed": 9}),
        ({"settings": {"method.seed": as_json(9)}}, {"method.seed": 9}),
        ({"settings": as_json({"method.seed": 9})}, {"method.seed": 9}),
        ({"settings": {CAPACITY: 8}}, {CAPACITY: 8}),
        ({"settings": {"method.families": [ONLY]}}, {"method.families.0.name": "only", "method.families.0.groups": 3}),
        ({"overrides": as_json({"runtime.retries": 6})}, {"runtime.retries": 6}),
        ({"overrides": as_json({"runtime.retries": None})}, None),
        ({"overrides": as_json({"method.seed": 6})}, {"method.seed": 6}),
        ({"overrides": as_json({BANK: {"capacity": 9}})}, {CAPACITY: 9}),
        ({"overrides": as_json({CAPACITY: FILE})}, {CAPACITY: 64}),
        ({"overrides": as_json({BANK: FILE})}, {CAPACITY: 64}),
        ({"overrides": as_json({"method.seed": FILE})}, {"method.seed": 1}),
        ({"overrides": as_json({"name": FILE})}, {"name": "tiny"}),
        ({"experiment": "conf/tiny.yaml"}, {}),
        ({"experiment": as_json("conf/tiny.yaml")}, {}),
    ],
)  # fmt: skip
def test_a_schedule_changes_what_it_sets_and_nothing_else(
    parameters: dict[str, Any], changed: dict[str, Any] | None
) -> None:
    expected = {
        "name": "mine", "method.seed": 5, CAPACITY: 40, "method.families.0.groups": 8,
        "method.families.0.name": "lake", "runtime.retries": 1, "rounds": 1,
    }  # fmt: skip
    if changed is None:  # null is a value where somebody has typed it; this key takes none
        with pytest.raises(BadInput, match="retries"):
            scheduled(parameters)
        return
    made = scheduled(parameters)
    assert {key: value_at(made, key) for key in expected} == {**expected, **changed}


def test_a_schedule_may_be_of_another_experiment() -> None:
    made = scheduled({"experiment": "conf/quickstart.yaml", "settings": {"name": "other"}})
    assert (made["name"], made["method"]["seed"], made["method"]["recipe"]["bank"]["capacity"]) == ("other", 5, 40)
    assert [each["name"] for each in made["method"]["families"]][:2] == ["shrine0", "shrine1"]


def test_a_setting_of_a_schedule_comes_after_the_group_that_the_deployment_overrides() -> None:
    deployed = {**DEPLOYED, "overrides": {"method.recipe.bank": {"capacity": 40, "eviction": "least_useful"}}}
    bank = scheduled({"settings": {"method.recipe.bank.capacity": 8}}, deployed)["method"]["recipe"]["bank"]
    assert (bank["capacity"], bank["eviction"]) == (8, "least_useful")


def test_what_a_deployment_of_another_flow_says_stays_under_a_null() -> None:
    deployed, nothing = (
        {"run_path": "mine", "round": 3, "conditions": ["with"]},
        {"round": None, "tasks": None, "conditions": None},
    )
    assert meant(deployed, nothing, HydrationContext(**FILL_IN)) == deployed


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"overrides": {"__prefect_kind": "json", "value": "{"}}, "overrides: Invalid JSON"),
        ({"overrides": VARIABLE}, "overrides: Variable 'gone'"),
        ({"settings": as_json([1])}, r"settings: found \[1\]"),
    ],
)
def test_what_a_schedule_may_not_be_is_said(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        scheduled(parameters)


def test_the_server_takes_what_is_valid(schema: dict[str, Any]) -> None:
    settings = {"method.families": None, "name": "mine", "method.roles.actor.optimizer.learning_rate": 1e-3}
    for value in ("conf/tiny.yaml", "/elsewhere/mine.yaml", fields()):
        for chosen in ({}, settings):
            assert (
                refused(schema, experiment=value, rounds=2, settings=chosen, overrides={"method.recipe.merge.every": 3})
                is None
            )
    whole = load_experiment(ROOT / "conf" / "tiny.yaml").model_dump(mode="json")
    assert refused(schema, experiment=whole, rounds=1, overrides={}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "Not A Name"),
        ("method.seed", -1),
        ("method.prompts", "nobody's"),
        ("method.families", [{"name": "only"}]),
        ("method.recipe.bank.capacity", 0),
        ("method.sede", 1),
    ],
)
def test_the_server_refuses_a_wrong_setting_and_names_it(schema: dict[str, Any], key: str, value: Any) -> None:
    assert key in (refused(schema, experiment="conf/tiny.yaml", settings={key: value}) or "accepted")


def test_bounds_of_the_other_parameters_are_the_servers_too(schema: dict[str, Any]) -> None:
    assert "rounds" in (refused(schema, experiment="conf/tiny.yaml", rounds=0) or "accepted")
    assert "overrides" in (refused(schema, experiment="conf/tiny.yaml", overrides=["method.seed"]) or "accepted")


@pytest.mark.parametrize(
    ("value", "overrides", "said"),
    [
        (fields() | {"method": {**fields()["method"], "sede": 1}}, None, "method.sede: unknown key; did you mean"),
        (fields() | {"runtime": {"shards": 0}}, None, "runtime.shards"),
        (fields() | {"method": {**fields()["method"], "prompts": "nobody's"}}, None, "method.prompts"),
        ("conf/tiny.yaml", {"method.seed": -3}, "method.seed"),
        ("conf/tiny.yaml", {"method.families.7.groups": 1}, "method.families.7.groups"),
        ("conf/nowhere.yaml", None, "there is no file conf/nowhere.yaml"),
        ({}, None, "name: Field required"),
        ("conf/tiny.yaml", {"method.sede": 1}, "method.sede: unknown key; did you mean 'seed'?"),
        (7, None, "experiment: found 7"),
    ],
)  # fmt: skip
def test_what_passes_the_form_and_is_wrong_names_the_field(value: Any, overrides: Any, said: str) -> None:
    with pytest.raises(BadInput) as raised:
        experiment_from(value, None, overrides)
    assert said in str(raised.value)


def test_overrides_apply_to_files_to_fields_and_to_an_experiment(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # a worker may stand anywhere
    made = experiment_from("conf/tiny.yaml")
    for value in ("conf/tiny.yaml", made, made.model_dump(mode="json")):
        changed = experiment_from(value, overrides={"method.seed": 9, "runtime.shards": "2"})
        assert (changed.method.seed, changed.runtime.shards) == (9, 2)
    assert isinstance(experiment_from(made), Experiment) and experiment_from(made).method.seed != 9


def test_a_run_is_named_by_path_or_by_experiment(tmp_path: Path, monkeypatch: Any) -> None:
    from flows.parameters import run_from

    (tmp_path / "tiny" / "rounds").mkdir(parents=True)
    monkeypatch.setenv("CRL_RUNS", str(tmp_path))
    assert run_from("tiny") == tmp_path / "tiny" == run_from(str(tmp_path / "tiny"))
    with pytest.raises(BadInput, match="run_path: there is no run 'tin'") as raised:
        run_from("tin")
    assert "tiny" in str(raised.value)


def test_no_form_shows_a_type_of_nothing_and_a_run_is_chosen_from_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a type of null the pages say `Property is type "None"`, before the field that was meant."""
    from prefect.utilities.callables import parameter_schema

    from flows import parameters
    from flows.evaluate import evaluate
    from flows.train import resume

    for flow in (evaluate, resume):
        assert "null" not in json.dumps(parameter_schema(flow).model_dump()), flow.name
    given = {"round": "latest", "tasks": [], "episodes": 0, "conditions": [], "seeds": {}}
    wanted = parameter_schema(evaluate).model_dump()
    assert refused(wanted, run_path="tiny", **given) is None
    assert refused(wanted, run_path="tiny", round="12", seeds={"start": 3, "count": 2}) is None
    assert refused(wanted, run_path="tiny", round="last") and refused(wanted, run_path="tiny", seeds={"from": 3})
    assert refused(parameter_schema(resume).model_dump(), run_path="tiny", runtime={"shards": 0})

    monkeypatch.setenv("CRL_RUNS", str(tmp_path))
    for name in ("older", "newer"):
        build_run(tmp_path / name)
    (tmp_path / "no run").mkdir()
    os.utime(tmp_path / "older" / "rounds", (1, 1))
    listed, other = parameters.run_choice()["anyOf"]
    assert (listed["enum"], other["title"]) == (["newer", "older"], "Another path")


def test_resume_changes_only_what_was_filled_in() -> None:
    last = Runtime(shards=3, retries=5)
    assert runtime_from(last, {"shards": 2, "retries": None}) == last.model_copy(update={"shards": 2})
    with pytest.raises(BadInput, match=r"runtime\.shards"):
        runtime_from(last, {"shards": 0})
