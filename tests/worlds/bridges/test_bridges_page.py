"""What docs/bridges.md shows is what ships: families that load, experiments, extras and pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from crl.config import FamilyConfig
from crl.config.load import load_experiment
from crl.worlds.bridges.reasoning_gym import UNUSABLE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/bridges.md").read_text(encoding="utf-8")
FAMILIES = dict(re.findall(r'^```yaml title="(\w+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
KINDS = ("gymnasium", "minigrid", "textarena", "reasoning_gym", "textworld")


def test_there_is_one_family_for_each_bridge() -> None:
    assert tuple(FAMILIES) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_family_shown_is_that_of_the_experiment(kind: str) -> None:
    shown = FamilyConfig.model_validate(yaml.safe_load(FAMILIES[kind]))
    assert shown.environment.kind == kind
    (shipped,) = load_experiment(ROOT / f"conf/bridges/{kind}.yaml").method.families
    for name in ("name", "environment", "workers", "step_time_limit_seconds"):
        assert getattr(shown, name) == getattr(shipped, name)


def test_textworld_is_evaluated_on_the_held_out_games_that_the_page_makes() -> None:
    (made,) = re.findall(r"seq (\d+) (\d+)\).*games/test/", PAGE)
    shown = FamilyConfig.model_validate(yaml.safe_load(FAMILIES["textworld"]))
    (shipped,) = load_experiment(ROOT / "conf/bridges/textworld.yaml").method.families
    assert shown.evaluation_seeds == shipped.evaluation_seeds
    assert shipped.evaluation_seeds.count == int(made[1]) - int(made[0]) + 1


def test_extras_and_pins_agree() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    for kind in KINDS:
        (needed,) = extras[kind]
        name = re.split(r"[=>]=", needed)[0]
        assert name.lower() in pinned and f"pip install -c constraints.txt -e '.[{kind}]'" in (
            ROOT / f"conf/bridges/{kind}.yaml"
        ).read_text(encoding="utf-8")


def test_every_dataset_that_is_refused_is_named() -> None:
    assert UNUSABLE
    assert not [name for name in UNUSABLE if f"`{name}`" not in PAGE]
