"""A file of given transitions of the lakes that `dreamgym_played` plays: of each level a won and a lost episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crl.config import FamilyConfig
from crl.envs import make_environment


def episode_of(family: FamilyConfig, name: str, seed: int, *, won: bool) -> list[dict[str, Any]]:
    """The steps of an episode: the way to the goal, or moves against the upper wall."""
    environment = make_environment(family)
    [start] = environment.reset_many([seed])
    observation, actions, found = start.observation, start.actions, []
    while True:
        action = environment.oracle(0) if won else "up" if observation.index("@") < 4 else "down"
        assert action is not None and isinstance(actions, tuple)
        step = environment.step_many({0: action})[0]
        outcome = "success" if step.success else "turn_limit" if step.done else "continues"
        found.append(
            {
                "episode_id": name, "turn": len(found), "family": family.name, "environment_seed": seed,
                "goal": start.goal, "observation": observation, "action": action, "actions": list(actions),
                "next_observation": step.observation, "next_actions": list(step.actions),  # type: ignore[arg-type]
                "feedback": step.feedback, "legal": step.legal, "outcome": outcome,
                "reward": step.reward if step.done else 0.0, "policy": "whoever", "extra": 1,
            }
        )  # fmt: skip
        if step.done:
            return found
        observation, actions = step.observation, step.actions


def write_given(path: Path, family: FamilyConfig, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Write the file; its rows."""
    rows = [
        row
        for seed in seeds
        for won in (True, False)
        for row in episode_of(family, f"e{seed}-{'won' if won else 'lost'}", seed, won=won)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows
