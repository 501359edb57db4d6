"""Random play of a bridge, seed by seed, to compare across processes: `python -m tests.worlds.bridges.play`."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

from crl.config.environments import ENVIRONMENTS

SAID = (
    "[7]",
    "[red]",
    "[blue]",
    "[12]",
    "[1 2 3 4]",
    "[3 1]",
    "[up]",
    "look",
    "go north",
    "take the key",
    "42",
    "",
    None,
    "x" * 2000,
    "é\u200b{}",
)
"""What a player might write where text is read."""


def episodes(config: dict[str, Any], seeds: Sequence[int], batch: int, turns: int = 12) -> dict[str, str]:
    """A digest of each seed's whole episode, of what was shown and of what was answered; played `batch` at a time."""
    environment = ENVIRONMENTS.validate(config).make()
    digests: dict[str, str] = {}
    for first in range(0, len(seeds), batch):
        wave = list(seeds[first : first + batch])
        starts = environment.reset_many(wave)
        texts = {slot: repr(start) for slot, start in enumerate(starts)}
        choices = {slot: random.Random(seed) for slot, seed in enumerate(wave)}
        actions = {slot: start.actions for slot, start in enumerate(starts)}
        for _ in range(turns):
            chosen = {
                slot: choices[slot].choice((*listed, None) if isinstance(listed, tuple) else SAID)
                for slot, listed in actions.items()
            }
            if not chosen:
                break
            for slot, step in environment.step_many(chosen).items():
                texts[slot] += repr(step)
                actions[slot] = step.actions
                if step.done:
                    # A few games of TextArena raise at a move that they cannot read.
                    assert step.error is None or config["kind"] == "textarena", step
                    del actions[slot]
        digests |= {str(seed): hashlib.sha256(texts[slot].encode()).hexdigest() for slot, seed in enumerate(wave)}
    environment.close()
    return digests


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(episodes(asked["config"], asked["seeds"], asked["batch"])))
