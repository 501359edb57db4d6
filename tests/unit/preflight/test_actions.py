"""Settings that need actions by name are refused before work starts where an environment parses text."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.config import EnvironmentConfig
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.protocols import FreeText, Start
from crl.recipes.complementary.ready import check_room

CONF = Path(__file__).parents[3] / "conf"


class TalkConfig(EnvironmentConfig):
    """Say anything."""

    kind: str = "talk"

    def make(self):
        return Talk()


class Talk:
    def reset_many(self, seeds):
        return [Start("Say it.", "Well?", FreeText("say anything")) for _ in seeds]

    def close(self):
        pass


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({}, None),
        ({"method.recipe.warm_start.demonstrations": "random"}, "method.recipe.warm_start.demonstrations"),
        ({"method.roles.actor.sampling.constrain": "actions"}, "method.roles.actor.sampling.constrain"),
    ],
)
def test_free_text_goes_without_what_needs_names(changes, where):
    method = load_experiment(CONF / "tiny.yaml", changes).method
    family = method.families[0].model_copy(update={"environment": TalkConfig()})
    method = method.model_copy(update={"families": [family]})
    if where is None:
        check_room(method)
        return
    with pytest.raises(BadInput, match=f"environment of family {family.name} lists no actions") as caught:
        check_room(method)
    assert caught.value.where == where
