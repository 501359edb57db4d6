"""Evaluation with the bank, of the same checkpoints: the most relevant entry, against the exploration of training.

    python benchmarks/evaluation_retrieval.py RUNS/STUDY [ROUND]

Evaluates the last round (or another one) of every run of a study again, twice: with the most relevant entry (the
default), and ranked by eq. 6 with training's counters (`retrieval.diversify_evaluation`). Weights, bank, held-out tasks
and random streams are the same, so the difference is paired. Prints a table by arm, means over seeds with their 95 %
intervals; runs without a bank are left out. Nothing is written into a run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from crl.engine.services import EngineServices, prepare_environment
from crl.lab.study.statistics import Interval, interval, paired
from crl.recipes.complementary.config import config_of
from crl.rounds.evaluate import evaluate_again
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory


def successes(run: RunDirectory, number: int | None) -> dict[str, float] | None:
    """Held-out success with the bank by way of retrieval, and without it; None where there is no bank."""
    recipe, mechanisms = recipe_of(run.method), config_of(run.method)
    if not recipe.has_bank:
        return None
    last = max(each for each in run.rounds() if run.is_complete(each, "update_actor")) if number is None else number
    services = EngineServices(run)
    try:
        found = {}
        for name, explores in (("relevance", False), ("explores", True)):
            retrieval = mechanisms.retrieval.model_copy(update={"diversify_evaluation": explores})
            changed = mechanisms.model_copy(update={"retrieval": retrieval})
            method = run.method.model_copy(update={"recipe": changed})
            rows = evaluate_again(run, method, recipe, last, services)
            for condition, key in (("with_bank", name), ("without_bank", "without")):
                listed = [row.success for row in rows if row.condition == condition]
                if listed:
                    found[key] = sum(listed) / len(listed)
        return found
    finally:
        services.close()


def told(value: Interval | None) -> str:
    if value is None:
        return "–"
    return f"{value.mean:+.3f}" if value.low is None else f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def main() -> None:
    study, number = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    paths = sorted(path.parent for path in study.glob("*/experiment.yaml"))
    if not paths:
        raise SystemExit(f"{study} holds no runs; expected the folder of a study (crl compare)")
    by_arm: dict[str, dict[int, dict[str, float]]] = {}
    for path in paths:
        run = RunDirectory.open(path)
        os.environ.update(prepare_environment(run.method.threads))
        found = successes(run, number)
        if found is not None and "relevance" in found:
            arm = path.name.removeprefix(f"{study.name}-").rsplit("-s", 1)[0]
            by_arm.setdefault(arm, {})[run.method.seed] = found
            print(json.dumps({"run": path.name, **found}), flush=True)
    table = Table(title=f"{study.name}: held-out success of the same checkpoints")
    for name in ("arm", "seeds", "most relevant entry", "explores (as before)", "difference", "without the bank"):
        table.add_column(name)
    for arm, seeds in by_arm.items():
        columns = {
            key: {seed: each[key] for seed, each in seeds.items() if key in each}
            for key in ("relevance", "explores", "without")
        }
        table.add_row(
            arm,
            str(len(seeds)),
            told(interval(list(columns["relevance"].values()))),
            told(interval(list(columns["explores"].values()))),
            told(paired(columns["relevance"], columns["explores"])),
            told(interval(list(columns["without"].values()))) if columns["without"] else "–",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
