"""Runs that hold nothing but evaluations, for tests of tables: won games of each task and condition, by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crl.lab.table.read import RunResults, read_results
from crl.records import Evaluation
from crl.run import experiment_file
from crl.run.directory import RunDirectory
from crl.run.evaluations import keep_evaluation
from tests.unit.report.builder import write_stage
from tests.unit.report.scripted import experiment

FIRST = 1_000_000
WITH, WITHOUT = "with_bank", "without_bank"
Won = Mapping[tuple[str, str], Sequence[int]]
"""By task and condition: 1 for each game won and 0 for each lost, in order of the held-out seeds."""


def rows(number: int, won: Won, first: int = FIRST) -> list[Evaluation]:
    """A won game has reward 1, 4 turns and 30 tokens; a lost one −1, 10 turns and 60 tokens."""
    return [
        Evaluation(
            evaluation_id=f"e{number:04d}/{condition}/{task}-s{first + place}", round=number, condition=condition,
            family=task,
            environment_seed=first + place, guided=condition == WITH, success=bool(each),
            reward=1.0 if each else -1.0, turns=4 if each else 10, invalid_actions=0 if each else 1,
            tokens_read=20 if each else 40, tokens_sampled=10 if each else 20,
            stop_reason="success" if each else "turn_limit", actions=["left"],
        )
        for (task, condition), games in won.items()
        for place, each in enumerate(games)
    ]  # fmt: skip


def recorded(root: Path, name: str, rounds: Mapping[int, Won], seed: int = 0, **changes: Any) -> Path:
    """A run with these evaluations; `changes` as of :func:`tests.unit.report.scripted.experiment`."""
    path = root / name
    path.mkdir(parents=True)
    families = changes.pop("families", ("lake", "pond"))
    experiment_file.create(path, experiment(name, families, method__seed=seed, **changes))
    (path / "rounds").mkdir()
    for number, won in rounds.items():
        write_stage(path, number, "evaluate", [rows(number, won)])
    return path


def keep(path: Path, number: int, won: Won, first: int = FIRST) -> Path:
    """An evaluation by `crl evaluate`."""
    return keep_evaluation(RunDirectory.open(path), number, rows(number, won, first), {}, {})[0]


def results_of(root: Path, name: str, won: Won, seed: int = 0, **changes: Any) -> RunResults:
    """The results of a run that was evaluated once, in round 1."""
    return read_results(recorded(root, name, {1: won}, seed, **changes), "last")
