"""An update against TRL's GRPOTrainer on the same recorded episodes: speed, gradients, memory, positions computed.

    python benchmarks/update.py [--pairs 5] [--against WORKTREE] [--weights lora full] [--gradients float32]
        [--model DIRECTORY] [--experiment FILE] [--liger]

The batch is collected once and kept in `--batch`: two groups of eight MiniHack episodes, or of the first family of
FILE, sampled by SmolLM2-135M or by the model in DIRECTORY. Name another file for another model.
Each system has a process of its own and makes one whole update (all micro-batches forward and backward, clipping,
AdamW) when it is told to, one after another in turn: other load hits all alike, and a ratio is that of neighbors. With
other load beside it, the seconds of CPU (all cores, this process alone) say more than those of the clock.
`--against` adds the code of another commit, from a worktree of it; `--liger` adds TRL with Liger's kernels, which need
a GPU. A system that cannot run says why, and the others go on. Advantages are drawn: time does not depend on them.

Everything is bfloat16 under autocast over float32 weights. Gradients are compared apart, in float32; with
`--gradients same` they are those of the first update of each, which is not timed, in the precision of the others.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
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

from update_systems.recorded import EXPERIMENT, GROUPS, MEMBERS, MODEL, ROOT, collect, read_batch

NEEDS = {"TRL": ("trl", "datasets"), "TRL with Liger": ("trl", "datasets", "liger_kernel")}
WORKERS = {"TRL": "trl", "TRL with Liger": "liger"}
"""What the process of a system is called, where it is not this project."""


class Ended(Exception):
    """What a process said before it ended."""


def environment_of(tree: Path) -> dict[str, str]:
    """Of a process that runs the code of a work tree; other places to import from stay."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))}


class System:
    """A system under measurement: a process that makes one update at a time."""

    def __init__(self, name: str, tree: Path, options: argparse.Namespace, weights: str, **more: str) -> None:
        # Not at the top: workers run this file over an older tree, which may not have it.
        from crl.policies.machine import computes_bfloat16

        self.name = name
        arguments = {"weights": weights, "autocast": "bfloat16" if computes_bfloat16() else "none", **more}
        command = [sys.executable, __file__, "--worker", WORKERS.get(name, "crl")]
        for key in ("batch", "episodes", "micro_batch", "threads", "model", "gradient_mib"):
            arguments[key] = str(getattr(options, key))
        for key, value in arguments.items():
            command += [f"--{key.replace('_', '-')}", value]
        environment = environment_of(tree) | {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        environment["OMP_NUM_THREADS"] = str(options.threads)
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )

    def step(self, command: str = "step") -> dict[str, float]:
        """One update; its metrics. Raises Ended where the process has."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._said.seek(0)
            raise Ended(f"{self.name} ended:\n{self._said.read()[-3000:]}")
        found: dict[str, float] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
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


def unable(name: str) -> str | None:
    """Why a system cannot run here; None where it can."""
    import torch

    missing = [each for each in NEEDS.get(name, ()) if importlib.util.find_spec(each) is None]
    if missing:
        return f"{missing[0]} is not installed"
    return "its kernels need a GPU" if name == "TRL with Liger" and not torch.cuda.is_available() else None


def tell(options: argparse.Namespace, **metrics: Any) -> None:
    """A line for gpu_suite.py."""
    if options.metrics:
        print("FIGURES " + json.dumps(metrics), flush=True)


def stepped(options: argparse.Namespace, systems: list[System], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Let systems make updates in turn; one that ends is left out, and `systems` loses it."""
    steps: dict[str, list[dict[str, float]]] = {system.name: [] for system in systems}
    for _ in range(rounds):
        for system in list(systems):
            try:
                steps[system.name].append(system.step())
                if done := steps[system.name][1:]:  # what is cut off later is not lost
                    middle = statistics.median(each["seconds"] for each in done)
                    tell(options, **{system.name: {"seconds": middle, "peak_gb": done[-1]["peak"]}})
            except Ended as ended:
                from rollout import reason  # workers run this file over an older tree, which may lack what it needs

                print(ended, flush=True)
                tell(options, **{system.name: {"failed": reason(str(ended))}})
                systems.remove(system)
                del steps[system.name]
    return steps


def measure(options: argparse.Namespace, weights: str, samples: Sequence[Any]) -> bool:
    """Time all systems in turn and print their table; whether none ended early."""
    trees = {"this": ROOT} | ({"before": options.against} if options.against else {}) | {"TRL": ROOT}
    if options.liger:
        trees["TRL with Liger"] = ROOT
    for name in list(trees):
        if reason := unable(name):
            print(f"{name} is left out: {reason}", flush=True)
            tell(options, **{name: {"skipped": reason}})
            del trees[name]
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: str(Path(scratch, name)) for name in trees if options.gradients == "same"}
        systems = [System(name, tree, options, weights, gradients=files.get(name, "")) for name, tree in trees.items()]
        steps = stepped(options, systems, options.pairs + 1)
        for system in systems:
            if options.roofline and system.name == "this":
                found = system.step("products")
                rates = [found["operations"] / found[key] / 1e9 for key in ("products", "whole")]
                print(
                    f"\n{weights}: products {rates[0]:.0f} GFLOP per CPU second alone, {rates[1]:.0f} in the update: "
                    f"{found['products'] / found['whole']:.0%} of its CPU time; a copy moves {found['copy'] / 1e9:.1f} "
                    "GB/s"
                )
            system.close()
        print_table(options, weights, samples, steps)
        for name in files:
            if name != "this" and name in steps and "this" in steps:
                same = cosine(files["this"], files[name])
                print(f"\n{weights}: cosine of the gradients of this and {name}: {same:.9f}")
                tell(options, **{name: {"cosine": same}})
    return len(steps) == len(trees)


def print_table(
    options: argparse.Namespace, weights: str, samples: Sequence[Any], steps: dict[str, list[dict[str, float]]]
) -> None:
    """A row for each system; ratios are those to this project."""
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
        compared = name != "this" and "this" in timed
        ratios = [
            spread([theirs / ours for theirs, ours in zip(found[key], timed["this"][key], strict=True)])
            if compared
            else ""
            for key in ("seconds", "computed")
        ]
        positions, middle = found["positions"][-1], statistics.median(found["seconds"])
        columns = [
            name, spread(found["seconds"]), spread(found["computed"]),
            f"{trained / middle:.0f}", f"{tokens / middle:.0f}", f"{positions:.0f}", f"{positions / tokens:.0%}",
            f"{found['peak'][-1]:.2f}", *ratios,
        ]  # fmt: skip
        print(f"| {' | '.join(columns)} |", flush=True)
        metrics = {"seconds": middle, "tokens_per_second": tokens / middle, "peak_gb": found["peak"][-1]}
        tell(options, **{name: {**metrics, "positions": positions, "tokens": tokens, "trained": trained}})


def compare_gradients(options: argparse.Namespace, weights: str) -> None:
    """Print the cosine of what this and TRL take for the gradient, in float32."""
    if reason := unable("TRL"):
        print(f"{weights}: gradients are not compared: {reason}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        files = [str(Path(scratch, name)) for name in ("this", "TRL")]
        for name, file in zip(("this", "TRL"), files, strict=True):
            system = System(name, ROOT, options, weights, autocast="none", gradients=file)
            system.step()
            system.close()
        print(f"\n{weights}: cosine of the gradients of this and TRL, float32: {cosine(*files):.9f}")


def recorded(options: argparse.Namespace) -> list[Any]:
    """The batch; collected by a process of its own, whose memory nothing here shares."""
    if not options.batch.is_file():
        given = [sys.executable, __file__, "--worker", "collect", "--batch", str(options.batch)]
        given += ["--model", options.model, "--experiment", str(options.experiment)]
        given += ["--turns", str(options.turns)] if options.turns else []
        subprocess.run(given, env=environment_of(ROOT), check=True)
    return read_batch(options.batch)[: options.episodes]


def main() -> int:
    """Measure, or be one of the measured; 1 where a system ended early."""
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
    parser.add_argument("--gradients", default="float32", metavar="float32|same|none", help="how they are compared")
    parser.add_argument("--gradient-mib", type=int, default=1 << 30, metavar="N", help="compare so much of them")
    parser.add_argument("--model", default=MODEL, metavar="DIRECTORY", help="of a model, or its name")
    parser.add_argument(
        "--experiment", type=Path, default=EXPERIMENT, metavar="FILE", help="its first family is played"
    )
    parser.add_argument("--turns", type=int, help="of an episode that is collected, in place of the experiment's")
    parser.add_argument("--liger", action="store_true", help="also TRL with Liger's kernels")
    parser.add_argument("--metrics", action="store_true", help="also print them as lines of JSON, for gpu_suite.py")
    for name in ("worker", "autocast"):  # of the processes it starts
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against is not None and not (options.against / "crl").is_dir():
        parser.error(f"--against: {options.against} is no worktree of this project (git worktree add DIRECTORY COMMIT)")
    if options.worker == "collect":
        collect(options.batch, options.model, options.experiment, options.turns)
        return 0
    if options.worker:
        if options.worker in WORKERS.values():
            from update_systems.trl_trainer import trl_worker as work
        else:
            from update_systems.worker import crl_worker as work
        work(options, read_batch(options.batch)[: options.episodes])
        return 0
    if options.gradients not in ("float32", "same", "none"):
        parser.error(f"--gradients: {options.gradients} is none of float32, same, none")
    samples, complete = recorded(options), True
    print(f"{machine()}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    for weights in options.weights:
        if options.pairs:
            complete = measure(options, weights, samples) and complete
        if options.gradients == "float32":
            compare_gradients(options, weights)
    return int(not complete)


if __name__ == "__main__":
    sys.exit(main())
