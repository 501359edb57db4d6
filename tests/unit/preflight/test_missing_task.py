"""A task of a mixture whose data, package or environment is missing: refused by its name before any work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import yaml

from crl.config import EnvironmentConfig, FamilyConfig, SeedRange
from crl.config.environments import FamilyChange
from crl.config.load import load_experiment, parse_experiment
from crl.envs.frozenlake import FrozenLakeConfig
from crl.errors import BadInput
from crl.preflight import check_ready

CONF = Path(__file__).parents[3] / "conf"


class ShopConfig(EnvironmentConfig):
    """A shop whose catalog is not on this machine."""

    kind: str = "shop"

    def make(self):
        raise BadInput("there is no catalog", expected="items.json", where="$SHOP", next_step="get it")


def test_the_family_is_named_and_nothing_is_written(tmp_path):
    loaded = load_experiment(CONF / "tiny.yaml")
    shop = loaded.method.families[0].model_copy(update={"name": "shop", "environment": ShopConfig()})
    method = loaded.method.model_copy(update={"families": [*loaded.method.families, shop]})
    with pytest.raises(BadInput, match="there is no catalog") as caught:
        check_ready(loaded.model_copy(update={"method": method}), tmp_path / "run", 1)
    assert caught.value.where == "environment of family shop" and caught.value.next_step == "get it"
    assert not (tmp_path / "run").exists()


def test_an_environment_that_nobody_registered_is_named_with_its_family():
    data = yaml.safe_load((CONF / "tiny.yaml").read_text())
    lake = data["method"]["families"][0]
    data["method"]["families"] = [lake, {**lake, "name": "castle", "environment": {"kind": "castles"}}]
    with pytest.raises(BadInput, match=r"there is no environment 'castles'.*family castle"):
        parse_experiment(data, base=CONF, where="x")


class Questions(FrozenLakeConfig):
    """An environment with a list of held-out tasks."""

    @property
    def held_out_levels(self) -> int | None:
        return 25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skipped", "count", "refused"),
    [(0, 25, None), (0, 26, "count to 25"), (5, 20, None), (5, 21, "count to 20"), (25, 1, "start to")],
)
def test_more_held_out_seeds_than_tasks_are_refused(tmp_path, skipped, count, refused):
    """Played twice, a task counts twice, and the interval of a success rate is narrower than what is known."""
    loaded = load_experiment(CONF / "tiny.yaml")
    questions = Questions()
    seeds = SeedRange(start=questions.held_out_from + skipped, count=count)
    change = {"name": "questions", "environment": questions, "evaluation_seeds": seeds}
    family = loaded.method.families[0].model_copy(update=change)
    method = loaded.method.model_copy(update={"families": [family]})
    asks = partial(check_ready, loaded.model_copy(update={"method": method}), tmp_path / "run", 1)
    if refused is None:
        asks()
        return
    with pytest.raises(BadInput, match=f"{count} seeds of {25 - skipped} held-out tasks") as caught:
        asks()
    assert refused in caught.value.next_step and "questions" in caught.value.where


class Lake(FrozenLakeConfig):
    """An environment with a list of held-out tasks for each size."""

    @property
    def held_out_levels(self) -> int | None:
        return 10 - self.size_max


def test_held_out_seeds_are_counted_in_every_world_of_a_family_that_changes(tmp_path):
    loaded = load_experiment(CONF / "tiny.yaml")
    family = loaded.method.families[0].model_dump() | {
        "environment": Lake(max_turns=8),
        "evaluation_seeds": SeedRange(start=1_000_000, count=6),
        "changes": [FamilyChange(round=3, environment={"size_max": 5})],
    }
    method = loaded.method.model_copy(update={"families": [FamilyConfig.model_validate(family)]})
    with pytest.raises(BadInput, match="6 seeds of 5 held-out tasks") as caught:
        check_ready(loaded.model_copy(update={"method": method}), tmp_path / "run", 1)
    assert "from round 3 on" in caught.value.where
