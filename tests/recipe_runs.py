"""Small real runs of the recipes besides Complementary RL: conf/<recipe>_tiny.yaml, two rounds."""

from __future__ import annotations

OTHERS = ("erl", "dreamgym", "importance_replay")
ROUNDS = 2
"""Rounds of the finished runs that tests share."""


def train_tiny(recipe: str, prefect: str = "--no-prefect", rounds: int = ROUNDS) -> list[str]:
    """Arguments of `crl` that train one for so many further rounds."""
    fewer = ("--set", "method.families.0.evaluation_seeds.count=2", "--set", "runtime.retry_delay_seconds=0.1")
    return ["train", f"conf/{recipe}_tiny.yaml", "--rounds", str(rounds), prefect, *fewer]


def tiny_name(recipe: str) -> str:
    """What its experiment is called."""
    return f"{recipe.replace('_', '-')}-tiny"
