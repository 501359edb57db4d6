"""What a round costs, and what Complementary RL adds to plain GRPO at equal episodes: by stage, side by side.

    python benchmarks/round.py [EXPERIMENT] [--rounds 7] [--pairs 5] [--ways NAME …] [--against COMMIT] [--set …]

Ways, in turns, each a run of its own in a temporary directory that goes on with every turn: the recipe `baseline` (GRPO
without a bank), the experiment as it is, with rounds that overlap on one engine and on two, the experiment as a Prefect
flow (`--ways` names some of these beside the baseline); with `--against` also the experiment at another commit, in a
worktree of its own, whose record may have another format. A turn is one command that trains so many rounds. Its first
round (start of the engines, loading) and its last (whose second track runs beside no other round) are not counted, nor
is the first turn of all. A round counts from the last commit of the round before to its own last commit, so whatever is
between the stages is in it; evaluation is set to happen in no round.

Told are medians over all rounds (fastest–slowest), and of every turn the median as a ratio to the baseline's of the
same turn: median over the turns (least–most). The load that the machine had before each turn is told: a metric with
other load beside it says little about time, and less about overlap, which needs cores that would else be idle.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from crl.errors import RecordDamaged
from crl.run.directory import stage_manifests

ROOT = Path(__file__).resolve().parents[1]
BASELINE = "GRPO alone"
STAGES = "sum of stages"
ROUND = "round"


@dataclass
class Way:
    """One way to train the experiment, and the seconds of each round by stage, turn by turn."""

    name: str
    options: tuple[str, ...] = ("--no-prefect",)
    source: Path = ROOT
    turns: list[dict[str, list[float]]] = field(default_factory=list)

    def train(self, experiment: str, rounds: int, options: Iterable[str], runs: Path) -> dict[str, list[float]]:
        """One turn: so many further rounds; the seconds of those that count."""
        command = [sys.executable, "-m", "crl", "train", experiment, "--rounds", str(rounds), "--runs", str(runs)]
        # The interpreter may know this project from its installation: the source to be measured comes first.
        environment = {**os.environ, "PYTHONPATH": str(self.source)}
        done = subprocess.run(
            [*command, *self.options, "--set", "method.evaluation.every=0", *options],
            cwd=self.source, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{self.name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        path = next(path.parent for path in runs.glob("*/experiment.yaml"))
        last = max(int(each.name) for each in (path / "rounds").iterdir())
        return seconds(path, range(last - rounds + 2, last))


def seconds(run: Path, numbers: Iterable[int]) -> dict[str, list[float]]:
    """Seconds of each stage, of all stages together and of the whole round, of these rounds. Raises RecordDamaged."""
    found: dict[str, list[float]] = {}
    for number in numbers:
        stages = provenances(run, number)
        whole = (last_commit(stages.values()) - last_commit(provenances(run, number - 1).values())).total_seconds()
        own = {name: float(told["seconds"]) for name, told in stages.items()}
        for name, value in {**own, STAGES: sum(own.values()), ROUND: whole}.items():
            found.setdefault(name, []).append(value)
    return found


def provenances(run: Path, number: int) -> dict[str, Mapping[str, Any]]:
    """What is known of each stage of a round beside its digest. Only manifests are read: every format has them."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, manifest in stage_manifests(run, number).items():
        if isinstance(manifest, RecordDamaged):
            raise manifest
        found[name] = manifest.provenance
    return found


def last_commit(stages: Iterable[Mapping[str, Any]]) -> datetime:
    """When the last of some stages was committed."""
    return max(datetime.fromisoformat(told["committed"]) for told in stages)


def told(values: Iterable[float]) -> str:
    """Median, least and most."""
    listed = sorted(values)
    return f"{statistics.median(listed):.2f} ({listed[0]:.2f}–{listed[-1]:.2f})" if listed else "–"


def ratios(way: Way, baseline: Way, name: str) -> list[float]:
    """By turn: the median of a way as a ratio to the baseline's; nothing for a stage that the baseline lacks."""
    pairs = zip(way.turns, baseline.turns, strict=True)
    return [statistics.median(mine[name]) / statistics.median(its[name]) for mine, its in pairs
            if name in mine and name in its]  # fmt: skip


@contextlib.contextmanager
def worktree(commit: str | None, base: Path) -> Iterator[Path | None]:
    """The sources of another commit; removed afterward."""
    if commit is None:
        yield None
        return
    path = base / "against"
    subprocess.run(["git", "worktree", "add", "--detach", str(path), commit], cwd=ROOT, check=True, capture_output=True)
    try:
        yield path
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(path)], cwd=ROOT, check=True, capture_output=True)


_OVERLAP = ("--no-prefect", "--set", "method.overlap=true", "--set")
WAYS = {
    "plain": Way("as it is"),
    "overlap": Way("overlap, one engine", (*_OVERLAP, "runtime.overlap_engines=1")),
    "overlap2": Way("overlap, two engines", (*_OVERLAP, "runtime.overlap_engines=2")),
    "prefect": Way("as it is, Prefect", ()),
}
"""What may be compared with the baseline, by the word of `--ways`."""


def ways(names: Iterable[str], against: str | None, source: Path | None) -> list[Way]:
    """What is compared, the baseline first."""
    return [
        Way(BASELINE, ("--no-prefect", "--set", "method.recipe.kind=baseline")),
        *(replace(WAYS[name], turns=[]) for name in dict.fromkeys(names)),
        *([Way(f"at {against}", source=source)] if source is not None else []),
    ]


def main() -> None:
    """Train in every way, in turns; print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", nargs="?", default="conf/realms.yaml")
    parser.add_argument(
        "--rounds", type=int, default=7, help="rounds of a turn; its first and its last are not counted"
    )
    parser.add_argument("--pairs", type=int, default=5, help="turns of each way")
    parser.add_argument(
        "--ways",
        nargs="*",
        choices=list(WAYS),
        default=list(WAYS),
        help="beside the baseline; name the experiment before them",
    )
    parser.add_argument("--against", metavar="COMMIT", help="also the experiment at another commit")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `crl train`")
    asked = parser.parse_args()
    if asked.rounds < 3:
        parser.error("--rounds: at least 3, of which the first and the last are not counted")
    options = [word for pair in asked.set for word in ("--set", pair)]
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as folder, worktree(asked.against, Path(folder)) as source:
        compared = ways(asked.ways, asked.against, source)
        for turn in range(asked.pairs + 1):
            for way in compared if turn % 2 == 0 else reversed(compared):
                loads.append(os.getloadavg()[0])
                found = way.train(asked.experiment, asked.rounds, options, Path(folder) / way.name.replace(" ", "-"))
                if turn:
                    way.turns.append(found)
    baseline = compared[0]
    print(f"{asked.experiment}: {asked.pairs} turns of {asked.rounds - 2} counted rounds; {os.cpu_count()} cores")
    print(f"load before a turn (the benchmark's own of the minute before included): {told(loads)}\n")
    names = dict.fromkeys(name for way in compared for turn in way.turns for name in turn)
    ordered = [*(name for name in names if name not in (STAGES, ROUND)), STAGES, ROUND]
    header = "| {} | " + " | ".join(way.name for way in compared) + " |\n|---|" + "---|" * len(compared)
    print(header.format("seconds"))
    for name in ordered:
        cells = (told(value for turn in way.turns for value in turn.get(name, [])) for way in compared)
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n" + header.format(f"ratio to {BASELINE}"))
    for name in ordered:
        if any(name in turn for turn in baseline.turns):
            print(f"| {name} | " + " | ".join(told(ratios(way, baseline, name)) for way in compared) + " |")


if __name__ == "__main__":
    main()
