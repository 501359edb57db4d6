"""Study files for tests, and `crl compare` in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.study.recipe import KIND
from tests.tiny_run import ROOT

NAME = "trial"
SEEDS, ROUNDS = [11, 12], 3
ARMS: dict[str, Any] = {
    "complementary": {"title": "Complementary <b>RL</b>", "set": {"method.recipe": {"kind": KIND}}},
    "baseline": {"set": {"method.recipe": {"kind": KIND, "arm": "baseline"}}},
}


def study(**changes: Any) -> dict[str, Any]:
    """The content of a study file."""
    return {
        "name": NAME,
        "question": "Does it | work?",
        "base": str(ROOT / "conf/tiny.yaml"),
        "rounds": ROUNDS,
        "seeds": SEEDS,
        "tuned_on": [1, 2],
        "compare_with": "baseline",
        "level": 0.25,
        "arms": ARMS,
        **changes,
    }


def write(folder: Path, **changes: Any) -> Path:
    """A study file."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study(**changes), sort_keys=False), encoding="utf-8")
    return path


def fake(**orders: str) -> dict[str, str]:
    """Environment of a study on the recipe without models; `orders` are mishaps by `<arm>_s<seed>`."""
    names = {f"{NAME}-{name.replace('_s', '-s')}": order for name, order in orders.items()}
    return {"CRL_STUDY_FAKE": json.dumps(names)}
