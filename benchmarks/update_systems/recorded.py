"""The recorded batch: two groups of eight episodes, sampled by the model that is to be updated."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
EXPERIMENT = ROOT / "conf" / "minihack_room.yaml"
GROUPS, MEMBERS = 2, 8


def collect(path: Path, model: str = MODEL, experiment: Path = EXPERIMENT, turns: int | None = None) -> None:
    """Play the episodes of the experiment's first family and write them as samples, one JSON object per line."""
    import numpy as np

    from crl.config.load import load_experiment
    from crl.envs import make_environment
    from crl.policies import load_policy, resolve_model
    from crl.records import FREE, Sample, Task
    from crl.rollout.play import EpisodeSlot, play_wave
    from crl.run.seeds import seed_for

    # Any text may be said: TRL knows no distribution over a few legal actions.
    chosen: dict[str, Any] = {"method.roles.actor.sampling.constrain": "none", "method.roles.actor.model": model}
    if turns is not None:
        chosen["method.families.0.environment.max_turns"] = turns
    method = load_experiment(experiment, chosen).method
    role, (family,) = method.role("actor"), method.families
    environment = make_environment(family)
    starts = environment.reset_many(list(range(GROUPS)))
    slots = [
        EpisodeSlot(
            Task(
                episode_id=f"g{group}-m{member}", round=1, family=family.name, group=group, member=member,
                environment_seed=group, stream=FREE, goal=start.goal, first_observation=start.observation, query="",
            )
        )
        for group, start in enumerate(starts)
        for member in range(MEMBERS)
    ]  # fmt: skip
    policy = load_policy(role, resolve_model(model).path, None, threads=2)
    played = play_wave(
        policy, environment, slots, method=method, seed_of=lambda name: seed_for(1, name), sampling=role.sampling,
        weights_digest="", stage="collect",
    )  # fmt: skip
    advantages = np.random.default_rng(0).normal(size=len(played))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")  # two processes may collect the same batch
    with partial.open("w") as file:
        for each, advantage in zip(played, advantages, strict=True):
            generation = each.generations[0]
            sample = Sample(
                sample_id=generation.generation_id, round=1, role="actor", objective="grpo", source="0001/collect",
                generation_id=generation.generation_id, reward=0.0, advantage=float(advantage), weight=1 / len(played),
                temperature=generation.temperature, token_ids=list(generation.token_ids),
                loss_mask=list(generation.loss_mask), logprobs=[float(value) for value in generation.logprobs],
            )  # fmt: skip
            file.write(json.dumps(dataclasses.asdict(sample)) + "\n")
    partial.replace(path)


def read_batch(path: Path) -> list[Any]:
    """The samples of a file that :func:`collect` wrote."""
    from crl.records import Sample

    return [Sample(**json.loads(line)) for line in path.read_text().splitlines()]
