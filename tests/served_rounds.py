"""Rounds on vLLM servers in this process: each role is sampled from, each set of weights is trained and committed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from crl.config import Method, SamplingConfig
from crl.engine.services import EngineServices
from crl.records import Weights
from crl.run.directory import RunDirectory
from tests.unit.engine.harness import make_experiment
from tests.unit.engine.test_shared_base import OBJECTIVES, RECIPE, SAMPLES, base


def play_rounds(
    root: Path, roles: dict[str, Any], count: int, after_sampling: Callable[[EngineServices, str, int], None]
) -> RunDirectory:
    """So many rounds in a run directory; told of each role that was sampled from, with the number of the round."""
    made = make_experiment(recipe=RECIPE)
    method = Method.model_validate(made.method.model_dump() | {"roles": roles})
    run = RunDirectory.create_or_open(made.model_copy(update={"method": method}), root)
    services = EngineServices(run)
    rows: dict[str, Weights] = {
        owner: dataclasses.replace(base(services, owner), source=method.role(owner).model) for owner in method.owners()
    }
    try:
        for number in range(1, count + 1):
            for role in ("actor", "extractor", "actor"):
                services.begin(number, f"play_{role}", None)
                policy = services.policy(role, rows[method.owner(role)])
                policy.open([[5, 6, 7]], [1]).sample([0], SamplingConfig(max_new_tokens=2))
                after_sampling(services, role, number)
            for owner in method.owners():
                services.begin(number, f"update_{owner}", None)
                trainer = services.trainer(owner, rows[owner])
                trainer.update(SAMPLES[owner], OBJECTIVES)
                directory = run.path / "rounds" / f"{number}-{owner}"
                trainer.save(directory)
                [file] = directory.glob("*.safetensors")
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                checkpoint = str(directory.relative_to(run.path))
                rows[owner] = dataclasses.replace(rows[owner], checkpoint=checkpoint, weights_digest=digest)
                services.trained(owner, rows[owner])
            services.release()  # as where another engine trains
    finally:
        services.close()
        torch.use_deterministic_algorithms(False)
    return run
