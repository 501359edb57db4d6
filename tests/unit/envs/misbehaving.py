"""An environment that misbehaves on some of its seeds, in the ways there are."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from crl.config import EnvironmentConfig
from crl.protocols import Start, Step, StopReason

WAYS = ("well", "raise", "exit", "segfault", "megabyte", "reset_raise", "reset_exit", "reset_megabyte", "infinite")
"""How seed 0, 1, … behaves; seeds past them behave well."""
HANGS = ("hang", "reset_hang")


class MisbehavingConfig(EnvironmentConfig):
    """Say go twice."""

    kind: str = "tests.unit.envs.misbehaving:MisbehavingConfig"
    ways: tuple[str, ...] = WAYS

    def make(self) -> Misbehaving:
        return Misbehaving(self.ways)


class Misbehaving:
    """Won by two actions."""

    def __init__(self, ways: Sequence[str]) -> None:
        self.ways = ways

    def way(self, seed: int) -> str:
        return self.ways[seed] if seed < len(self.ways) else "well"

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self.seeds, self.turns = list(seeds), [0] * len(seeds)
        starts = []
        for seed in seeds:
            way = self.way(seed)
            misbehave(way.removeprefix("reset_") if way.startswith("reset_") else "well")
            if way == "helper_hang":
                self.helper = subprocess.Popen(["sleep", "3600"])
            text = "x" * 10**6 if way == "reset_megabyte" else f"seed {seed}"
            starts.append(Start("Say go twice.", text, ("go", "stay")))
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        return {slot: self.step(slot, action) for slot, action in actions.items()}

    def step(self, slot: int, action: str | None) -> Step:
        way = self.way(self.seeds[slot])
        misbehave(way)
        self.turns[slot] += action == "go"
        done = self.turns[slot] == 2
        text = "x" * 10**6 if way == "megabyte" else f"seed {self.seeds[slot]} turn {self.turns[slot]}"
        reward = float("inf") if way == "infinite" else float(done)
        return Step(text, ("go", "stay"), True, "", done, done, reward, StopReason.success if done else None)

    def oracle(self, slot: int) -> str | None:
        return "go"

    def close(self) -> None:
        pass


def misbehave(way: str) -> None:
    if way == "raise":
        raise KeyError("broken")
    if way == "exit":
        os._exit(3)
    if way == "segfault":
        ctypes.string_at(0)
    while way in ("hang", "helper_hang"):
        time.sleep(60)
