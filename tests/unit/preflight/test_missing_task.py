"""A task of a mixture whose data, package or environment is missing: refused by its name before any work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import yaml

from crl.config import EnvironmentConfig, SeedRange
from crl.config.load import load_experiment, parse_experiment
from crl.envs.hotpotqa import HotpotQAConfig
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


@pytest.mark.parametrize(("count", "refused"), [(25, False), (26, True)])
def test_more_held_out_seeds_than_tasks_are_refused(tmp_path, count, refused):
    """Played twice, a task counts twice, and the interval of a success rate is narrower than what is known."""
    loaded = load_experiment(CONF / "tiny.yaml")
    questions = HotpotQAConfig(questions="own")
    seeds = SeedRange(start=questions.held_out_from, count=count)
    change = {"name": "questions", "environment": questions, "evaluation_seeds": seeds}
    family = loaded.method.families[0].model_copy(update=change)
    method = loaded.method.model_copy(update={"families": [family]})
    asks = partial(check_ready, loaded.model_copy(update={"method": method}), tmp_path / "run", 1)
    if not refused:
        asks()
        return
    with pytest.raises(BadInput, match="26 seeds of 25 held-out tasks") as caught:
        asks()
    assert "count to 25" in caught.value.next_step and "questions" in caught.value.where
