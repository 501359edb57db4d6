"""A small experiment and helpers to run the fake recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from crl.config import DeepSpeedConfig, Experiment, FamilyConfig, Method, RoleConfig, Runtime
from crl.engine.driver import Driver
from crl.envs.frozenlake import FrozenLakeConfig
from crl.run.directory import RunDirectory

_PROMPTS = Path(__file__).parents[3] / "conf" / "prompts" / "tiny.yaml"
RECIPE = "tests.unit.engine.fake_recipe:FakeConfig"


def make_experiment(
    *, seed: int = 0, ranks: int = 1, recipe: dict[str, Any] | None = None, overlap: bool = False, **runtime: Any
) -> Experiment:
    """An experiment on the tiny model, of the fake recipe unless another is given."""
    prompts = yaml.safe_load(_PROMPTS.read_text(encoding="utf-8"))
    role = RoleConfig(model="tiny", deepspeed=DeepSpeedConfig(ranks=ranks))
    method = Method(
        seed=seed,
        families=[FamilyConfig(name="lake", environment=FrozenLakeConfig())],
        roles={"actor": role, "extractor": role},
        recipe=recipe or {"kind": RECIPE},
        prompts=prompts,
        threads=1,
        overlap=overlap,
    )
    settings = {"retry_delay_seconds": 0.01, "validate_every": 0, **runtime}
    return Experiment(name="fake", method=method, runtime=Runtime(**settings))


def make_driver(root: Path, mishaps: dict[str, Any] | None = None, **experiment: Any) -> Driver:
    """A driver on the fake recipe in `root`, with mishaps by stage."""
    made = make_experiment(**experiment)
    environment = {"CRL_FAKE": json.dumps(mishaps or {})}
    return Driver(RunDirectory.create_or_open(made, root), made.runtime, environment=environment)


def digests(run: RunDirectory) -> dict[str, str]:
    """Digest of every complete stage."""
    return {
        f"{number}/{stage}": run.manifest(number, stage).digest
        for number in run.rounds()
        for stage in run.complete_stages(number)
    }


def leftovers(run: RunDirectory) -> list[Path]:
    """Temporary files and directories anywhere in the run."""
    return [path for path in run.path.rglob("*") if path.name.startswith((".tmp", ".parts"))]
