"""How well a model plays in form that nobody taught: the share of valid actions under the prompts of each experiment.

    python benchmarks/prompts.py [conf/webshop.yaml …] [--model smollm2] [--episodes 16] [--turns 8] [--dtype float32]
                                 [--set KEY=VALUE]

Of each experiment only round 0 is run, without a warm start: held-out tasks are played with the experiment's prompts
and its temperature of evaluation, and nothing holds an answer to the legal actions (`constrain: none`). Printed are, by
task family, the share of answers that were valid actions with its interval over episodes (bootstrap), episodes won, and
tokens written per turn.
Any model that `roles.actor.model` takes can be named; the files of ALFWorld are looked for where the experiment does.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from crl.cli.shared import parse_overrides
from crl.config.load import load_experiment
from crl.engine.driver import Driver
from crl.envs import check_environment
from crl.errors import CrlError
from crl.lab.table.read import EVALUATE
from crl.records import Evaluation, rows_of
from crl.run.directory import RunDirectory

EXPERIMENTS = ("quickstart", "minihack_room", "frozenlake", "sokoban", "webshop", "hotpotqa", "swe", "alfworld")
PLAIN: dict[str, Any] = {
    "method.roles.actor.sampling.constrain": "none",
    "runtime.min_free_gigabytes": 0,
}


def played(path: str, more: dict[str, Any], episodes: int, turns: int, runs: str) -> list[Evaluation]:
    """What the untaught model of the experiment does on its held-out tasks, without a bank."""
    method = load_experiment(path, more).method
    families = [family.model_dump(mode="json", exclude_unset=True) for family in method.families]
    for written, family in zip(families, method.families, strict=True):
        written["environment"]["max_turns"] = min(turns, family.turn_limit or turns)
        written["evaluation_seeds"]["count"] = min(episodes, family.evaluation_seeds.count)
    untaught = {"method.recipe.warm_start": None} if getattr(method.recipe, "warm_start", None) else {}
    experiment = load_experiment(path, {**PLAIN, **untaught, "method.families": families, **more})
    for family in experiment.method.families:
        check_environment(family.environment)
    run = RunDirectory.create_or_open(experiment, Path(runs))
    with Driver(run, experiment.runtime) as driver:
        driver.run_round(0)
    rows = rows_of(Evaluation, run.read(0, EVALUATE, Evaluation))
    return [row for row in rows if row.condition == "without_bank"]


def line(family: str, rows: list[Evaluation], generator: np.random.Generator) -> str:
    """A row of the table: valid actions by turn, their interval over resampled episodes, wins, tokens."""
    valid = np.array([row.turns - row.invalid_actions for row in rows])
    turns = np.array([row.turns for row in rows])
    drawn = generator.integers(len(rows), size=(2000, len(rows)))
    low, high = np.percentile(valid[drawn].sum(axis=1) / turns[drawn].sum(axis=1), [2.5, 97.5])
    won = sum(row.success for row in rows)
    tokens = sum(row.tokens_sampled for row in rows) / turns.sum()
    share = valid.sum() / turns.sum()
    return f"| {family} | {share:.0%} ({low:.0%} to {high:.0%}) | {won} of {len(rows)} | {tokens:.1f} |"


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", default=[f"conf/{name}.yaml" for name in EXPERIMENTS])
    parser.add_argument("--model", help="default: the experiment's own")
    parser.add_argument("--dtype", help="of the actor; default: the experiment's own")
    parser.add_argument("--episodes", type=int, default=16, help="of each task family")
    parser.add_argument("--turns", type=int, default=8, help="most turns of an episode")
    parser.add_argument("--set", action="append", default=[], help="a setting of every experiment")
    arguments = parser.parse_args()
    more = parse_overrides(arguments.set)
    for key, value in (("model", arguments.model), ("dtype", arguments.dtype)):
        if value is not None:
            more[f"method.roles.actor.{key}"] = value
    generator = np.random.default_rng(0)
    print("| experiment: task family | valid actions | won | tokens per turn |\n|:---|---:|---:|---:|")
    for path in arguments.experiments:
        by_family: dict[str, list[Evaluation]] = defaultdict(list)
        try:
            with tempfile.TemporaryDirectory() as runs:
                for row in played(path, more, arguments.episodes, arguments.turns, runs):
                    by_family[row.family].append(row)
        except CrlError as error:
            print(f"| {Path(path).stem} | not played: {' '.join(str(error).split())} | | |", flush=True)
        for family, rows in by_family.items():
            print(line(f"{Path(path).stem}: {family}", rows, generator), flush=True)


if __name__ == "__main__":
    main()
