"""Numbers: every field of every config class has both bounds; what is no such number is refused, and its key named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from crl.config import ENGINES, ENVIRONMENTS, RECIPES, Experiment
from crl.config.base import Model
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.lab.study.config import Study
from crl.lab.warm.config import WarmStartFile, load_warm_start

CONF = Path(__file__).parents[3] / "conf"


def classes() -> list[type[Model]]:
    for registry in (ENVIRONMENTS, RECIPES, ENGINES):
        for kind in registry.names():
            registry.load(kind)
    assert Experiment and Study and WarmStartFile, "their modules have the other classes"
    found, waiting = [], [Model]
    while waiting:
        waiting += (subclasses := waiting.pop().__subclasses__())
        found += [each for each in subclasses if each.__module__.startswith("crl.")]
    return found


def numbers(schema: Any) -> Iterator[dict[str, Any]]:
    """The schemas of numbers in that of a field, other models left out."""
    if isinstance(schema, list):
        for item in schema:
            yield from numbers(item)
    elif isinstance(schema, dict) and schema.get("type") != "model":
        if schema.get("type") in ("int", "float"):
            yield schema
        for key, value in schema.items():
            yield from numbers(value) if key not in ("default", "metadata", "serialization") else ()


def fields(schema: Any) -> dict[str, Any]:
    while schema["type"] != "model-fields":
        schema = schema["schema"]
    return schema["fields"]


def test_every_number_has_both_bounds_and_is_finite_and_strict():
    seen = set()
    for model in classes():
        assert model.model_config.get("allow_inf_nan") is False, model
        for name, field in fields(model.__pydantic_core_schema__).items():
            for number in numbers(field):
                place = f"{model.__name__}.{name}"
                seen.add(place)
                assert "ge" in number or "gt" in number, f"{place} has no lower bound"
                assert "le" in number or "lt" in number, f"{place} has no upper bound"
                assert number.get("strict") is True, f"{place} takes what is no number"
    some = {"SeedRange.count", "OptimizerConfig.betas", "ExtractorObjective.return_reward", "Study.seeds"}
    assert some | {"LoraConfig.lora_alpha", "RealmsConfig.held_out_moves", "BaselineConfig.warm_up_rounds"} <= seen


SEEDS = "method.families.0.evaluation_seeds"
ADAM = "method.roles.actor.optimizer"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("method.seed", value) for value in ("true", "1.5", "3.0", "'3'", ".nan", str(2**63))),
        *(("method.threads", value) for value in ("true", "2.0", "'2'")),
        *(("method.families.0.train_seeds.start", str(value)) for value in (2**63, 2**63 - 1)),
        ("method.families.0.train_seeds.count", str(2**63)),
        ("method.families.0.groups", str(2**63)),
        ("method.families.0.environment.held_out_from", str(2**63)),
        ("method.families.0.step_time_limit_seconds", ".inf"),
        ("method.families.0.environment.frozen_probability", ".nan"),
        (f"{ADAM}.learning_rate", ".nan"),
        (f"{ADAM}.learning_rate", "'1e-4'"),
        (f"{ADAM}.learning_rate", "true"),
        (f"{ADAM}.betas", "[0.9, 1.0]"),
        (f"{ADAM}.betas", "[-0.1, 0.9]"),
        (f"{ADAM}.betas", "[.nan, 0.9]"),
        (f"{ADAM}.max_grad_norm", ".inf"),
        ("method.roles.actor.lora", "{lora_alpha: .inf}"),
        ("method.roles.actor.sampling.top_k", "3.0"),
        ("method.roles.actor.sampling.temperature", "1e-300"),
        ("method.evaluation.temperature", "1e-300"),
        ("method.families.0.step_time_limit_seconds", "1e-300"),
        ("runtime.stage_time_limit_seconds", "1e-300"),
        ("method.recipe.retrieval.count_weight", ".inf"),
        ("method.recipe.extractor_objective.return_reward", ".nan"),
        ("method.recipe.bank.capacity", str(2**63)),
        ("runtime.stage_time_limit_seconds", ".inf"),
        ("runtime.wait_seconds", ".nan"),
        ("runtime.save_total_limit", str(2**63)),
    ],
)
def test_what_is_no_such_number_is_refused(key, value):
    with pytest.raises(BadInput) as caught:
        load_experiment(CONF / "tiny.yaml", {key: value})
    assert caught.value.exit_code == 2
    said = str(caught.value).replace(".frozenlake.", ".").replace(".complementary.", ".")
    assert key in said and "found " in said


def test_millions_of_held_out_seeds_are_refused():
    with pytest.raises(BadInput) as caught:
        load_experiment(CONF / "tiny.yaml", {f"{SEEDS}.count": "5000000"})
    assert f"{SEEDS}: count is 5000000, expected at most 100000" in str(caught.value)
    assert load_experiment(CONF / "tiny.yaml", {f"{SEEDS}.count": "100000"})


@pytest.mark.parametrize(
    ("value", "number"), [("1", 1.0), ("1e-4", 1e-4), ("1E-4", 1e-4), ("1.e-4", 1e-4), ("1.0e-4", 1e-4), ("2e0", 2.0)]
)
def test_a_whole_number_and_one_with_an_exponent_are_numbers(value, number, tmp_path):
    set_to = load_experiment(CONF / "tiny.yaml", {f"{ADAM}.learning_rate": value})
    assert set_to.method.roles["actor"].optimizer.learning_rate == number
    path = tmp_path / "warm.yaml"
    path.write_text((CONF / "warm/realms.yaml").read_text().replace("4.0e-3", value if number <= 1 else "1"))
    path.parent.joinpath("prompts").symlink_to(CONF / "prompts")
    assert load_warm_start(path).training.learning_rate == min(number, 1.0)


def test_a_class_of_another_package_has_strict_numbers_unless_it_says_otherwise():
    class Other(Model):
        type: int = Field(1)
        default: float | None = 2.0
        loose: int = Field(1, strict=False)

    assert Other(default=3).default == 3.0 and Other(loose="4").loose == 4
    for wrong in ({"type": "1"}, {"type": True}, {"default": "2"}, {"default": float("inf")}):
        with pytest.raises(ValueError, match=r"valid integer|valid number|finite number"):
            Other(**wrong)
