"""What a round costs: seconds per stage and in all, without Prefect and with it.

    python benchmarks/round.py [EXPERIMENT] [ROUNDS]

Trains the experiment (default conf/realms.yaml: 128 episodes of the miniature a round) from nothing in a temporary
directory, once by the driver alone and once as a flow, and reads the times from the manifests. A round counts from the
last commit of the round before to its own last commit, so whatever is between the stages is in it: orchestration,
retention, the display, the journal. The first two rounds, in which every path of the code is new, are left out; so is
evaluation, which is set to happen in no round. Told are the median, and in brackets the fastest and the slowest round.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from crl.run.directory import RunDirectory

WARM_UP = 2
"""Rounds that are not counted, after those in which the experiment trains nothing yet."""
WAYS = {"without Prefect": ["--no-prefect"], "with Prefect": []}


def train(experiment: str, rounds: int, options: list[str], runs: Path) -> RunDirectory:
    """Train in `runs`; the run it left."""
    command = [sys.executable, "-m", "crl", "train", experiment, "--rounds", str(rounds), "--runs", str(runs), *options]
    done = subprocess.run([*command, "--set", "method.evaluation.every=0"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return RunDirectory.open(next(path.parent for path in runs.glob("*/experiment.yaml")))


def seconds(run: RunDirectory, first: int) -> dict[str, list[float]]:
    """Seconds of each stage, of what happens between the stages, and of the whole round, from round `first` on."""
    found: dict[str, list[float]] = {}
    for number in run.rounds():
        if number < first:
            continue
        stages = {name: run.manifest(number, name).provenance for name in run.complete_stages(number)}
        before = run.manifest(number - 1, run.complete_stages(number - 1)[-1]).provenance
        last = list(stages.values())[-1]
        whole = (moment(last["committed"]) - moment(before["committed"])).total_seconds()
        own = {name: float(told["seconds"]) for name, told in stages.items()}
        for name, value in {**own, "between stages": whole - sum(own.values()), "round": whole}.items():
            found.setdefault(name, []).append(value)
    return found


def moment(text: str) -> datetime:
    """A time of a manifest."""
    return datetime.fromisoformat(text)


def told(values: Iterable[float]) -> str:
    """Median, fastest and slowest."""
    listed = sorted(values)
    return f"{statistics.median(listed):.2f} ({listed[0]:.2f}–{listed[-1]:.2f})"


def main() -> None:
    """Train in every way, print a table."""
    experiment = sys.argv[1] if len(sys.argv) > 1 else "conf/realms.yaml"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 12
    columns: dict[str, dict[str, list[float]]] = {}
    for way, options in WAYS.items():
        with tempfile.TemporaryDirectory() as runs:
            run = train(experiment, rounds, options, Path(runs))
            columns[way] = seconds(run, run.method.recipe.warm_up_rounds + WARM_UP + 1)
    print(
        f"{experiment}: seconds per round, {len(columns['with Prefect']['round'])} rounds: median (fastest–slowest)\n"
    )
    print("| stage | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    names = dict.fromkeys(name for column in columns.values() for name in column)
    for name in [*(name for name in names if name != "round"), "round"]:
        print(
            f"| {name} | "
            + " | ".join(told(column[name]) if name in column else "–" for column in columns.values())
            + " |"
        )


if __name__ == "__main__":
    main()
