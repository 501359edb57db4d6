"""The form: what the schema of the deployments offers and refuses, and what the run makes of values. No server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flows  # noqa: F401  (first: it turns Prefect's telemetry off)
from crl.config import Experiment
from crl.config.load import load_experiment
from crl.errors import BadInput
from tests.tiny_run import ROOT

pytest.importorskip("prefect")


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


def fields(name: str = "mine") -> dict[str, Any]:
    """An experiment as the form sends it: the fields of the quickstart, every family by itself, prompts by name."""
    experiment = load_experiment(ROOT / "conf" / "quickstart.yaml").model_dump(mode="json")
    return {**experiment, "name": name, "method": {**experiment["method"], "prompts": "shrines"}}


def test_the_form_offers_the_files_of_conf_another_file_or_the_fields(schema: dict[str, Any]) -> None:
    offered, another, inline = schema["properties"]["experiment"]["anyOf"]
    assert {"conf/quickstart.yaml", "conf/tiny.yaml", "conf/paper/minihack_room.yaml"} <= set(offered["enum"])
    assert not [name for name in offered["enum"] if "prompts" in name or "deepspeed" in name]
    assert all((ROOT / name).is_file() for name in offered["enum"])
    assert (another["type"], another["title"]) == ("string", "Another file")
    assert inline["$ref"] == "#/definitions/Experiment"
    assert schema["properties"]["experiment"]["default"] == "conf/quickstart.yaml"


def test_every_parameter_and_field_has_a_description_and_the_ui_can_show_its_type(schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        assert field.get("description"), name
    definitions = schema["definitions"]
    assert {"Experiment", "Method", "FamilyConfig", "Runtime"} <= set(definitions)
    for model, definition in definitions.items():
        for name, field in definition.get("properties", {}).items():
            told = field.get("description") or definitions.get(field.get("$ref", "").split("/")[-1], {})
            assert told or "const" in field, f"{model}.{name}"
            assert "oneOf" not in field, f"{model}.{name}: the pages know anyOf only"
    assert definitions["SamplingConfig"]["properties"]["temperature"]["exclusiveMinimum"] == 0
    assert definitions["Method"]["properties"]["prompts"]["anyOf"][0]["enum"] == [
        "minihack",
        "paper",
        "paper_ask",
        "realms",
        "shrines",
        "tiny",
    ]


def test_the_fields_come_filled_in_as_the_quickstart_and_what_is_shown_is_what_runs(schema: dict[str, Any]) -> None:
    from flows.parameters import experiment_from

    method = schema["definitions"]["Experiment"]["properties"]["method"]["default"]
    assert method["prompts"] == "shrines"
    expected = load_experiment(ROOT / "conf" / "quickstart.yaml").method.digest()
    for value in ({"name": "mine", "method": method}, {"name": "mine"}):
        assert refused(schema, experiment=value, rounds=1) is None
        assert experiment_from(value).method.digest() == expected
    assert experiment_from("conf/quickstart.yaml").method.digest() == expected


def test_the_server_takes_what_is_valid(schema: dict[str, Any]) -> None:
    for value in ("conf/tiny.yaml", "/elsewhere/mine.yaml", fields()):
        assert refused(schema, experiment=value, rounds=2, overrides={"method.seed": 3}) is None
    whole = load_experiment(ROOT / "conf" / "tiny.yaml").model_dump(mode="json")
    assert refused(schema, experiment=whole, rounds=1, overrides={}) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "Not A Name"}, "experiment.name"),
        ({"method": {**fields()["method"], "seed": -1}}, "experiment.method.seed"),
        ({"method": {**fields()["method"], "sede": 1}}, "'sede'"),
        ({"method": {**fields()["method"], "prompts": "nobody's"}}, "experiment.method.prompts"),
        ({"runtime": {"shards": 0}}, "experiment.runtime.shards"),
        ({"runtime": {"when_busy": "hurry"}}, "experiment.runtime.when_busy"),
    ],
)
def test_the_server_refuses_what_is_wrong_and_names_the_field(
    schema: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    assert named in (refused(schema, experiment={**fields(), **change}, rounds=1) or "accepted")


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
        (7, None, "experiment: found 7"),
    ],
)  # fmt: skip
def test_what_passes_the_form_and_is_wrong_names_the_field(value: Any, overrides: Any, said: str) -> None:
    from flows.parameters import experiment_from

    with pytest.raises(BadInput) as raised:
        experiment_from(value, overrides)
    assert said in str(raised.value)


def test_overrides_apply_to_files_to_fields_and_to_an_experiment(tmp_path: Path, monkeypatch: Any) -> None:
    from flows.parameters import experiment_from

    monkeypatch.chdir(tmp_path)  # a worker may stand anywhere
    made = experiment_from("conf/tiny.yaml")
    for value in ("conf/tiny.yaml", made, made.model_dump(mode="json")):
        changed = experiment_from(value, {"method.seed": 9, "runtime.shards": "2"})
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
