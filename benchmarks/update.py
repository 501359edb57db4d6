"""An update against TRL's GRPOTrainer on the same recorded episodes: speed, gradients, memory, positions computed.

    python benchmarks/update.py [--pairs 5] [--against WORKTREE] [--weights lora full] [--skip-gradients]

The batch is collected once (two groups of eight MiniHack episodes, sampled by SmolLM2-135M) and kept in `--batch`.
Each system has a process of its own and makes one whole update (all micro-batches forward and backward, clipping,
AdamW) when it is told to, one after another in turn: other load hits all alike, and a ratio is that of neighbors. With
other load beside it, the seconds of CPU (all cores, this process alone) say more than those of the clock.
`--against` adds the code of another commit, from a worktree of it. Advantages are drawn: time does not depend on them.
Gradients are compared in float32; everything else is bfloat16 under autocast over float32 weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from update_systems.recorded import GROUPS, MEMBERS, ROOT, collect, read_batch


class System:
    """A system under measurement: a process that makes one update at a time."""

    def __init__(self, name: str, tree: Path, options: argparse.Namespace, weights: str, **more: str) -> None:
        # Not at the top: workers run this file over an older tree, which may not have it.
        from crl.policies.precision import computes_bfloat16

        self.name = name
        arguments = {"weights": weights, "autocast": "bfloat16" if computes_bfloat16() else "none", **more}
        command = [sys.executable, __file__, "--worker", "trl" if name == "TRL" else "crl"]
        for key in ("batch", "episodes", "micro_batch", "threads"):
            arguments[key] = str(getattr(options, key))
        for key, value in arguments.items():
            command += [f"--{key.replace('_', '-')}", value]
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        environment["OMP_NUM_THREADS"] = str(options.threads)
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )

    def step(self, command: str = "step") -> dict[str, float]:
        """One update; its figures."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._said.seek(0)
            raise SystemExit(f"{self.name} ended:\n{self._said.read()[-3000:]}")
        found: dict[str, float] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def cosine(first: str, second: str) -> float:
    """Cosine of two whole gradients."""
    from safetensors.torch import load_file

    one, other = load_file(first), load_file(second)
    if one.keys() != other.keys():
        raise SystemExit(f"gradients of different parameters: {sorted(one.keys() ^ other.keys())[:5]}")
    products = [[float((a[name].double() * b[name].double()).sum()) for name in one]
                for a, b in ((one, other), (one, one), (other, other))]  # fmt: skip
    both, first_norm, second_norm = (sum(each) for each in products)
    return both / (first_norm * second_norm) ** 0.5


def machine() -> str:
    """The GPU's name where there is one, else the processor's."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name(0))
    path = Path("/proc/cpuinfo")
    names = [line for line in path.read_text().splitlines() if line.startswith("model name")] if path.exists() else []
    return names[0].split(":")[1].strip() if names else platform.machine()


def spread(values: Sequence[float]) -> str:
    """Median and, in brackets, the least and the largest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def measure(options: argparse.Namespace, weights: str, samples: Sequence[Any]) -> None:
    """Time all systems in turn and print their table."""
    trees = {"this": ROOT} | ({"before": options.against} if options.against else {}) | {"TRL": ROOT}
    systems = [System(name, tree, options, weights) for name, tree in trees.items()]
    steps: dict[str, list[dict[str, float]]] = {system.name: [] for system in systems}
    for _ in range(options.pairs + 1):
        for system in systems:
            steps[system.name].append(system.step())
    if options.roofline:
        found = systems[0].step("products")
        rates = [found["operations"] / found[key] / 1e9 for key in ("products", "whole")]
        print(
            f"\n{weights}: products {rates[0]:.0f} GFLOP per CPU second alone, {rates[1]:.0f} in the update: "
            f"{found['products'] / found['whole']:.0%} of its CPU time; a copy moves {found['copy'] / 1e9:.1f} GB/s"
        )
    for system in systems:
        system.close()
    # Inputs of the model: the last token of a sequence is only a target (TRL reads it all the same).
    tokens = sum(len(sample.token_ids) for sample in samples)
    trained = sum(sum(sample.loss_mask) for sample in samples)
    about = f"{len(samples)} episodes, {tokens} tokens, {trained} trained, micro-batch {options.micro_batch}"
    print(f"\n{weights}: {about}\n")
    names = ["", "s per update", "CPU s", "trained tokens/s", "all tokens/s", "positions computed", "of all tokens"]
    print(f"| {' | '.join([*names, 'peak GB', 'faster by', 'CPU, by'])} |")
    print("|---" * 10 + "|")
    # The first update is not counted: memory is taken then.
    timed = {name: {key: [each[key] for each in found[1:]] for key in found[0]} for name, found in steps.items()}
    for name, found in timed.items():
        ratios = [
            spread([theirs / ours for theirs, ours in zip(found[key], timed["this"][key], strict=True)])
            for key in ("seconds", "computed")
        ]
        positions, middle = found["positions"][-1], statistics.median(found["seconds"])
        columns = [
            name, spread(found["seconds"]), spread(found["computed"]),
            f"{trained / middle:.0f}", f"{tokens / middle:.0f}", f"{positions:.0f}", f"{positions / tokens:.0%}",
            f"{found['peak'][-1]:.2f}", *(["", ""] if name == "this" else ratios),
        ]  # fmt: skip
        print(f"| {' | '.join(columns)} |", flush=True)


def compare_gradients(options: argparse.Namespace, weights: str) -> None:
    """Print the cosine of what this and TRL take for the gradient."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [str(Path(scratch, name)) for name in ("this", "TRL")]
        for name, file in zip(("this", "TRL"), files, strict=True):
            system = System(name, ROOT, options, weights, autocast="none", gradients=file)
            system.step()
            system.close()
        print(f"\n{weights}: cosine of the gradients of this and TRL, float32: {cosine(*files):.9f}")


def main() -> None:
    """Measure, or be one of the measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, default=5, help="updates of each that are timed; 0: compare gradients only"
    )
    parser.add_argument("--against", type=Path, help="a worktree of another commit")
    parser.add_argument("--weights", nargs="+", choices=["lora", "full"], default=["lora", "full"])
    parser.add_argument("--batch", type=Path, default=ROOT / "build" / "update_batch.jsonl")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=GROUPS * MEMBERS, help="the first so many of the batch")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--roofline", action="store_true", help="also time the update's matrix products by themselves")
    parser.add_argument("--skip-gradients", action="store_true", help="compare no gradients")
    for name in ("worker", "autocast", "gradients"):  # of the processes it starts
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against is not None and not (options.against / "crl").is_dir():
        parser.error(f"--against: {options.against} is no worktree of this project (git worktree add DIRECTORY COMMIT)")
    if options.worker:
        if options.worker == "trl":
            from update_systems.trl_trainer import trl_worker as work
        else:
            from update_systems.worker import crl_worker as work
        work(options, read_batch(options.batch)[: options.episodes])
        return
    if not options.batch.is_file():
        collect(options.batch)
    samples = read_batch(options.batch)[: options.episodes]
    print(f"{machine()}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    for weights in options.weights:
        if options.pairs:
            measure(options, weights, samples)
        if not options.skip_gradients:
            compare_gradients(options, weights)


if __name__ == "__main__":
    main()
