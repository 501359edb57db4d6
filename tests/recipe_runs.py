"""Small real runs of the recipes besides Complementary RL: conf/<recipe>_tiny.yaml, two rounds.

These recipes are guests: tests that speak of several recipes play those that are there.
"""

from __future__ import annotations

import pytest

from crl.config import ENVIRONMENTS
from crl.config.method import RECIPES

HERE = {*RECIPES.names(), *ENVIRONMENTS.names()}
OTHERS = tuple(kind for kind in ("erl", "dreamgym", "importance_replay") if kind in HERE)


def requires(*kinds: str) -> pytest.MarkDecorator:
    """The mark of a case that plays these recipes or environments, beside cases of the core."""
    missing = sorted({*kinds} - HERE)
    return pytest.mark.skipif(bool(missing), reason=f"not here: {', '.join(missing)}")


ROUNDS = 2
"""Rounds of the finished runs that tests share."""


def train_tiny(recipe: str, prefect: str = "--no-prefect", rounds: int = ROUNDS) -> list[str]:
    """Arguments of `crl` that train one for so many further rounds."""
    fewer = ("--set", "method.families.0.evaluation_seeds.count=2", "--set", "runtime.retry_delay_seconds=0.1")
    return ["train", f"conf/{recipe}_tiny.yaml", "--rounds", str(rounds), prefect, *fewer]


def tiny_name(recipe: str) -> str:
    """What its experiment is called."""
    return f"{recipe.replace('_', '-')}-tiny"
