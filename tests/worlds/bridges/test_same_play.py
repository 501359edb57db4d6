"""Each bridge: a hundred episodes by chance are the same twice, in another process, order and batch size."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.bridges.play import episodes

ROOT = Path(__file__).parents[3]
LAKE = {"kind": "gymnasium", "id": "FrozenLake-v1", "arguments": {"is_slippery": True}}
PLAYED: list[tuple[str, dict[str, Any]]] = [
    ("gymnasium", LAKE),
    ("gymnasium", {"kind": "gymnasium", "id": "CliffWalking-v1", "arguments": {"is_slippery": True}}),
    *(
        ("minigrid", {"kind": "minigrid", "id": name})
        for name in (
            "BabyAI-GoToObj-v0", "BabyAI-BossLevel-v0", "MiniGrid-DoorKey-8x8-v0", "MiniGrid-Dynamic-Obstacles-6x6-v0",
        )
    ),
    *(
        ("textarena", {"kind": "textarena", "id": name})
        for name in ("GuessTheNumber-v0", "Mastermind-v0", "2048-v0", "Blackjack-v0", "Bandit-v0", "Sokoban-v0")
    ),
    *(
        ("reasoning_gym", {"kind": "reasoning_gym", "dataset": name})
        for name in ("chain_sum", "pool_matrix", "letter_counting", "mini_sudoku", "syllogism")
    ),
]  # fmt: skip
SEEDS = [*range(50), *range(1_000_000, 1_000_050)]


def name_of(config: dict[str, Any]) -> str:
    return str(config.get("id") or config.get("dataset") or config["kind"])


def elsewhere(config: dict[str, Any], seeds: list[int], batch: int) -> dict[str, str]:
    """The digests of a new process, in which sets of strings have another order."""
    asked = json.dumps({"config": config, "seeds": seeds, "batch": batch})
    command = [sys.executable, "-m", "tests.worlds.bridges.play", asked]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "config"), PLAYED, ids=lambda value: name_of(value) if isinstance(value, dict) else ""
)
def test_a_hundred_episodes_are_the_same_everywhere(package: str, config: dict[str, Any]) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the extra {package} is not installed")
    first = episodes(config, SEEDS, 20)
    shuffled = random.Random(1).sample(SEEDS, len(SEEDS))
    assert episodes(config, shuffled, 7) == first
    assert elsewhere(config, shuffled[::-1], 33) == first
    assert len(set(first.values())) > 10, "seeds matter"


def test_a_short_play_is_the_same_everywhere() -> None:
    first = episodes(LAKE, [3, 1, 4], 3)
    assert elsewhere(LAKE, [4, 3, 1], 2) == first
