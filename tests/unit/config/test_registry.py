"""Kinds: built in, through entry points, by module:Class; and what is said of those that cannot be had."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import jsonschema
import pytest
from pydantic import Field, ValidationError

from crl.config import ENVIRONMENTS, EnvironmentConfig, FamilyConfig, RoleConfig, registry
from crl.config.load import readable
from crl.config.registry import Registry
from crl.envs.frozenlake import FrozenLakeConfig


class PondConfig(EnvironmentConfig):
    """A pond."""

    kind: str = "pond"
    depth: float = Field(1.0, gt=0, description="Depth in meters.")


NOT_A_CONFIG = 3
HERE = f"{__name__}:PondConfig"


@pytest.fixture
def registered(monkeypatch):
    """Entry points as installed packages would have them; kinds that were loaded before are forgotten."""

    def register(**points):
        listed = EntryPoints(EntryPoint(name, value, "crl.environments") for name, value in points.items())
        monkeypatch.setattr(registry, "points_of", lambda group: listed.select(group=group))
        monkeypatch.setattr(ENVIRONMENTS, "_loaded", {})
        monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, sys.modules[PondConfig.__module__]))

    register()
    return register


def family(environment):
    return FamilyConfig.model_validate({"name": "a", "environment": environment})


def refused(environment):
    with pytest.raises(ValidationError) as caught:
        family(environment)
    return "\n".join(readable(item, FamilyConfig) for item in caught.value.errors())


def test_a_kind_is_validated_and_dumped_by_its_own_class(registered):
    registered(pond=HERE)
    made = family({"kind": "pond", "depth": 2})
    assert made.environment == PondConfig(kind="pond", depth=2.0)
    assert made.model_dump(mode="json")["environment"] == {"kind": "pond", "held_out_from": None, "depth": 2.0}
    assert family(made.model_dump()["environment"]) == made
    assert family("pond").environment == PondConfig() == family(PondConfig()).environment
    by_class = family({"kind": HERE, "depth": 3}).environment
    assert by_class == PondConfig(kind=HERE, depth=3.0), "the kind stays: it is what finds the class again"
    assert family({"kind": "frozenlake"}).environment == FrozenLakeConfig()


def test_what_cannot_be_had_is_named_with_what_can(registered):
    registered(pond=HERE, broken="no_such_module_at_all:Config", number=f"{__name__}:NOT_A_CONFIG")
    said = refused({"kind": "frozenlak"})
    assert "there is no environment 'frozenlak'; did you mean 'frozenlake'?" in said
    assert f"{', '.join(ENVIRONMENTS.built_in())}, broken, number, pond, or module:Class" in said
    assert f"names no kind of environment: one of {ENVIRONMENTS.built_in()[0]}" in refused({"depth": 1})
    assert "make setup" in refused("alfworld"), "the installation may be older than the sources"
    assert "cannot be imported: ModuleNotFoundError" in refused("broken")
    assert "a subclass of crl.config.environments.EnvironmentConfig" in refused("number")


def test_errors_of_its_fields_stand_behind_the_kind(registered):
    registered(pond=HERE)
    said = refused({"kind": "pond", "deepness": 1, "depth": -1})
    assert "environment.pond.deepness: unknown key; did you mean" not in said
    assert "environment.pond.deepness: unknown key; known keys: depth, held_out_from, kind" in said
    assert "environment.pond.depth: Input should be greater than 0 (found -1)" in said
    assert "size_min 5 is larger than size_max 4" in refused({"kind": "frozenlake", "size_min": 5})


def test_the_schema_is_the_union_of_what_is_registered(registered):
    registered(pond=HERE, broken="no_such_module_at_all:Config")
    with pytest.warns(UserWarning, match="'broken' cannot be imported"):
        schema = FamilyConfig.model_json_schema()
    offered = schema["properties"]["environment"]["anyOf"]
    titles = [ENVIRONMENTS.load(kind).model_config["title"] for kind in ENVIRONMENTS.built_in()] + [
        "PondConfig",
        "module:Class",
    ]
    # A class that uses another one twice is referred to.
    whole = [schema["$defs"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in offered]
    assert [each["title"] for each in whole] == titles
    for valid in ({"kind": "pond", "depth": 2.5}, {"kind": "frozenlake"}, {"kind": "a.b:C", "anything": 1}):
        jsonschema.validate({"name": "a", "environment": valid}, schema)
    for wrong in ({"kind": "pond", "depth": -1}, {"kind": "lake"}, {"kind": "frozenlake", "sizes": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"name": "a", "environment": wrong}, schema)


def test_an_engine_is_selected_by_role():
    assert RoleConfig.model_validate({"engine": "transformers"}) == RoleConfig()
    assert RoleConfig().model_dump()["engine"] == {"kind": "transformers"}
    with pytest.raises(ValidationError, match="there is no engine 'vlm'"):
        RoleConfig.model_validate({"engine": {"kind": "vlm"}})
    with pytest.raises(ValidationError) as caught:
        RoleConfig.model_validate({"engine": {"kind": "transformers", "speed": 2}})
    (said,) = (readable(item, RoleConfig) for item in caught.value.errors())
    assert said == "  engine.transformers.speed: unknown key; known keys: kind"


def test_a_registry_of_another_sort_has_a_group_of_its_own(registered):
    assert Registry("pond", PondConfig, {"here": HERE}).group == "crl.ponds"


def test_the_config_imports_no_environment_until_one_is_named():
    program = "import sys, crl.config; print(sorted(name for name in sys.modules if name.startswith('crl.envs')))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
