"""Rollouts against other ways to play the same games, side by side.

    python benchmarks/rollout.py [--groups 8] [--members 8] [--turns 15] [--pairs 5]
        [--ways reread trl vllm] [--before DIR] [--dtype float32]

SmolLM2-135M-Instruct plays MiniHack-Room-Ultimate-5x5 from the same prompts with the same sampling settings, all ways
in one precision: bfloat16, or float32 where this machine has no kernels for bfloat16. Ways
(`benchmarks/rollout_systems/`), each a process of its own, in turn with this project's:

- `reread`: transformers' `generate` over the whole history at every turn, in this project's loop.
- `trl`: GRPOTrainer with its environment support (the part of a step that generates).
- `vllm`: this project's loop over a vLLM server (`make vllm`).
- `before`: this project's code in DIR, a work tree of an older commit.

Loading and one small warm-up round are not timed. The ratio of each pair is turns per second here by turns per second
there; tokens read are counted at the model. The second line of a process has its time by index of turn: turns that end
together share the time since others last did, so a turn takes longer where few episodes are left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from crl.policies.precision import computes_bfloat16

HERE = Path(__file__).resolve().parent
SCRIPTS = {"ours": "ours.py", "reread": "reread.py", "trl": "trl_way.py", "vllm": "served.py", "before": "ours.py"}


def measured(way: str, size: list[str], root: Path) -> dict[str, Any]:
    """The figures of one process."""
    environment = os.environ | {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [sys.executable, str(HERE / "rollout_systems" / SCRIPTS[way]), *size]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if not lines:
        raise SystemExit(f"{way} failed (exit code {done.returncode}):\n{done.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(lines[-1].removeprefix("FIGURES "))
    return figures


def by_turn(found: dict[str, Any]) -> str:
    """Milliseconds a turn, and how many turns there were, by index of turn."""
    times = " ".join(f"{seconds * 1000:.1f}" for seconds in found["seconds_of"])
    return f"        ms per turn, from the first: {times}; turns: {' '.join(map(str, found['turns_of']))}"


def main() -> None:
    """Alternate the ways, print a line for each process and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("groups", 8), ("members", 8), ("turns", 15), ("pairs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ways", nargs="*", choices=["reread", "trl", "vllm"], default=["reread", "trl"])
    parser.add_argument("--before", type=Path)
    able = computes_bfloat16()
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16" if able else "float32")
    given = parser.parse_args()
    if given.dtype == "bfloat16" and not able:
        parser.error("--dtype: this project would compute in float32 here, beside others in bfloat16")
    print(f"all ways in {given.dtype}", flush=True)
    size = [str(given.groups), str(given.members), str(given.turns), given.dtype]
    ways = [*given.ways, *(["before"] if given.before else [])]
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(given.pairs):
        for way in ways:
            rates = []
            for each in ("ours", way):
                root = given.before.resolve() if each == "before" else HERE.parent
                found = measured(each, size, root)
                rates.append(found["turns"] / found["seconds"])
                line = f"{each:7} {found['turns']:5.0f} turns in {found['seconds']:6.1f} s: {rates[-1]:5.1f} turns/s"
                if "read" in found:
                    per_turn = found["read"] / found["turns"]
                    line += f"; {per_turn:6.1f} tokens read per turn in {found['passes']:.0f} passes"
                print(f"{line}\n{by_turn(found)}", flush=True)
            ratios[way].append(rates[0] / rates[1])
            print(f"{ratios[way][-1]:.1f} times as fast as {way}", flush=True)  # what is cut off later is not lost
    for way, found_ratios in ratios.items():
        middle, low, high = statistics.median(found_ratios), min(found_ratios), max(found_ratios)
        print(f"against {way}: {middle:.1f} times as many turns per second (median of {len(found_ratios)} pairs, "
              f"{low:.1f} to {high:.1f})")  # fmt: skip


if __name__ == "__main__":
    main()
