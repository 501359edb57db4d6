"""Rollouts against other ways to play the same games, side by side.

    python benchmarks/rollout.py [--groups 8] [--members 8] [--turns 15] [--pairs 5]
        [--ways reread paged trl vllm] [--before DIR] [--dtype float32] [--model DIRECTORY] [--experiment FILE]

SmolLM2-135M-Instruct, or the model in DIRECTORY, plays MiniHack-Room-Ultimate-5x5, or the first family of FILE, from
the same prompts with the same sampling settings, all ways in one precision: bfloat16, or float32 where this machine has
no kernels for bfloat16. Ways (`benchmarks/rollout_systems/`), each a process of its own, after this project's:

- `reread`: transformers' `generate` over the whole history at every turn, in this project's loop.
- `paged`: transformers' `generate_batch` (continuous batching) in place of `generate`.
- `trl`: GRPOTrainer with its environment support (the part of a step that generates).
- `vllm`: this project's loop over a vLLM server (`make vllm`).
- `before`: this project's code in DIR, a work tree of an older commit.

A way that fails says why, and the others go on. Loading and one small warm-up round are not timed. The ratio of a pair
is turns per second here, before its ways are timed, by turns per second there; tokens read are counted at the model.
The second line of a process has its time by index of turn: turns that end together share the time since others last
did, so a turn takes longer where few episodes are left.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from crl.policies.machine import computes_bfloat16

HERE = Path(__file__).resolve().parent
SCRIPTS = {
    "ours": "ours.py", "reread": "reread.py", "paged": "paged.py", "trl": "trl_way.py", "vllm": "served.py",
    "before": "ours.py",
}  # fmt: skip


class WayFailed(Exception):
    """What a process said before it ended without metrics."""


def measured(way: str, size: list[str], root: Path) -> dict[str, Any]:
    """The metrics of one process."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [sys.executable, str(HERE / "rollout_systems" / SCRIPTS[way]), *size]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if not lines:
        raise WayFailed(f"{way} failed (exit code {done.returncode}):\n{(done.stderr or done.stdout)[-3000:]}")
    metrics: dict[str, Any] = json.loads(lines[-1].removeprefix("FIGURES "))
    return metrics


def by_turn(found: dict[str, Any]) -> str:
    """Milliseconds a turn, and how many turns there were, by index of turn."""
    times = " ".join(f"{seconds * 1000:.1f}" for seconds in found["seconds_of"])
    return f"        ms per turn, from the first: {times}; turns: {' '.join(map(str, found['turns_of']))}"


def reason(text: str) -> str:
    """The line of an output that says why a process ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Input)\b.*:", line)]
    return (named or lines)[-1]


def line_of(way: str, found: dict[str, Any]) -> str:
    """One process in words."""
    line = f"{way:7} {found['turns']:5.0f} turns in {found['seconds']:6.1f} s: {rate(found):5.1f} turns/s"
    if "read" in found:
        line += f"; {found['read'] / found['turns']:6.1f} tokens read per turn"
    if "passes" in found:
        line += f" in {found['passes']:.0f} passes"
    return f"{line}\n{by_turn(found)}"


def rate(found: dict[str, Any]) -> float:
    """Turns per second."""
    return float(found["turns"] / found["seconds"])


def main() -> int:
    """Alternate the ways, print a line for each process and the ratios; 1 where a way failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("groups", 8), ("members", 8), ("turns", 15), ("pairs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ways", nargs="*", choices=["reread", "paged", "trl", "vllm"], default=["reread", "trl"])
    parser.add_argument("--before", type=Path)
    able = computes_bfloat16()
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16" if able else "float32")
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="DIRECTORY", help="of a model, or its name")
    parser.add_argument("--experiment", type=Path, default=HERE.parent / "conf/minihack_room.yaml", metavar="FILE")
    parser.add_argument("--metrics", action="store_true", help="also print each as a line of JSON, for gpu_suite.py")
    given = parser.parse_args()
    if given.dtype == "bfloat16" and not able:
        parser.error("--dtype: this project would compute in float32 here, beside others in bfloat16")
    print(f"all ways in {given.dtype}", flush=True)
    size = [str(each) for each in (given.groups, given.members, given.turns, given.dtype, given.model)]
    size.append(str(given.experiment.resolve()))
    ways = [*given.ways, *(["before"] if given.before else [])]
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    failed = []
    for _ in range(given.pairs):
        ours = 0.0
        for way in ("ours", *ways):
            try:
                found = measured(way, size, given.before.resolve() if way == "before" else HERE.parent)
            except WayFailed as error:
                failed.append(way)
                print(error, flush=True)  # what is cut off later is not lost
                if given.metrics:
                    print("FIGURES " + json.dumps({way: {"failed": reason(str(error))}}), flush=True)
                continue
            print(line_of(way, found), flush=True)
            if given.metrics:
                print("FIGURES " + json.dumps({way: {**found, "turns_per_second": round(rate(found), 2)}}), flush=True)
            if way == "ours":
                ours = rate(found)
            elif ours:
                ratios[way].append(ours / rate(found))
                print(f"{ratios[way][-1]:.1f} times as fast as {way}", flush=True)
    for way, found_ratios in ratios.items():
        if found_ratios:
            middle, low, high = statistics.median(found_ratios), min(found_ratios), max(found_ratios)
            print(f"against {way}: {middle:.1f} times as many turns per second (median of {len(found_ratios)} pairs, "
                  f"{low:.1f} to {high:.1f})")  # fmt: skip
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
