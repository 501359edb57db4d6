"""ALFWorld: this project's engine beside the alfworld package, on the same games, commands and machine.

    python -m benchmarks.environment_systems.alfworld DATA [--split valid_seen] [--games 8] [--steps 40]

A step is a command with the text, the admissible commands and whether the goal is reached; a reset is a game from its
file, read anew, to its first commands. (The package reads the file once more before that; this is not timed.) Both
engines take turns game by game, so other load on the machine falls on both. That they say the same is checked on the
way.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment_systems.alfworld_reference import MISSING, Reference, interpreter
from crl.worlds.alfworld.files import TASKS, games_of, load
from crl.worlds.alfworld.game import State


@dataclass(frozen=True)
class Metrics:
    """Speeds of two engines of one environment."""

    name: str
    steps: float
    """Steps per second of this project's engine."""
    their_steps: float
    resets: float
    """Resets per second of this project's engine."""
    their_resets: float


def measure(data: Path, *, split: str = "valid_seen", games: int = 8, steps: int = 40) -> Metrics:
    """The speeds of both engines. Raises BadInput where the data is missing, RuntimeError where the package is."""
    python = interpreter()
    if python is None:
        raise RuntimeError(MISSING)
    files = games_of(data, split, TASKS)[: games + 1]
    reference = Reference(python)
    ours, theirs, taken = [0.0, 0.0], [0.0, 0.0], 0
    try:
        for number, file in enumerate(files):
            reset, state = _timed(lambda file=file: _begun(file.path))
            answer = reference.ask(load=str(file.path))
            _compare(state, answer)
            if number > 0:  # the first game warms both up
                ours[0], theirs[0] = ours[0] + reset, theirs[0] + answer["seconds"]
            player = random.Random(number)
            for _ in range(steps):
                if state.won:
                    break
                command = player.choice(state.commands)
                step, _ = _timed(lambda state=state, command=command: _stepped(state, command))
                answer = reference.ask(do=command)
                _compare(state, answer)
                if number > 0:
                    ours[1], theirs[1], taken = ours[1] + step, theirs[1] + answer["seconds"], taken + 1
    finally:
        reference.close()
    played = len(files) - 1
    return Metrics("alfworld", taken / ours[1], taken / theirs[1], played / ours[0], played / theirs[0])


def _timed(work: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _begun(path: Path) -> State:
    state = load(path, "file").start()
    _ = state.commands, state.won
    return state


def _stepped(state: State, command: str) -> None:
    state.do(command)
    _ = state.commands, state.won


def _compare(state: State, answer: dict[str, Any]) -> None:
    if (state.text, list(state.commands), state.won) != (answer["text"], answer["commands"], answer["won"]):
        raise RuntimeError(f"the engines differ: {state.text!r} here, {answer['text']!r} there")


def main() -> None:
    """Print the speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--games", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    found = measure(chosen.data, split=chosen.split, games=chosen.games, steps=chosen.steps)
    for what, ours, theirs in (("steps", found.steps, found.their_steps), ("resets", found.resets, found.their_resets)):
        print(f"{what} per second: {ours:,.1f} here, {theirs:,.2f} there, {ours / theirs:,.0f} times as many")


if __name__ == "__main__":
    main()
