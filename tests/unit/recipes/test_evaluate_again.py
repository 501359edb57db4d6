"""Other held-out seeds for an evaluation are refused where training could know their levels."""

from __future__ import annotations

from typing import Any

import pytest

from crl.config import SeedRange
from crl.errors import BadInput
from crl.rounds.evaluate import Choice, evaluate_again
from crl.rounds.recipe import recipe_of
from tests.unit.report.scripted import experiment


@pytest.mark.parametrize(
    ("start", "told"), [(99_990, "overlap the training seeds"), (500_000, "draw levels of training in task lake")]
)
def test_seeds_of_training_are_refused(start: int, told: str) -> None:
    nobody: Any = None  # nothing is read and nothing is played
    method = experiment().method
    with pytest.raises(BadInput, match=told) as caught:
        evaluate_again(
            nobody, method, recipe_of(method), 1, nobody, choice=Choice(seeds=SeedRange(start=start, count=20))
        )
    if start == 500_000:
        assert "held_out_from 1000000" in str(caught.value)


def test_more_seeds_than_there_are_held_out_levels_are_refused() -> None:
    nobody: Any = None
    method = experiment().method
    family = method.families[0]
    few = type("Few", (type(family.environment),), {"held_out_levels": property(lambda self: 30)})
    environment = few.model_construct(**dict(family.environment))
    method = method.model_copy(update={"families": [family.model_copy(update={"environment": environment})]})
    for start, left in ((1_000_000, 30), (1_000_015, 15), (1_000_030, 0)):
        with pytest.raises(BadInput, match=f"has {left} held-out seeds from {start} on: some would be played twice"):
            evaluate_again(
                nobody, method, recipe_of(method), 1, nobody, choice=Choice(seeds=SeedRange(start=start, count=31))
            )
