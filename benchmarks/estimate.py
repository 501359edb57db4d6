"""The estimate of `crl doctor` against one real round of a random model of any shape, on this machine.

    python benchmarks/estimate.py [--hidden 2048] [--layers 20] [--intermediate 5632] [--folder DIRECTORY] [--threads 1]
    python benchmarks/estimate.py --model DIRECTORY

The default has 1.0 billion parameters (bfloat16, adapters, one set of weights for actor and extractor) and needs about
12 GB of memory and 3 GB of disk. The model is made in DIRECTORY (default: one that is removed afterward) as
benchmarks/made_model.py says; `--model` takes one that is there. Memory is the largest resident size of any process of
the round; with a GPU it is the GPU's: what its driver says is in use beyond what was before, looked at five times a
second.
That includes the context of CUDA and what torch's allocator keeps in reserve. Disk is what the round left.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from crl.config import Experiment
from crl.config.load import load_experiment
from crl.engine.driver import Driver
from crl.engine.events import Event, StageDone
from crl.preflight.estimate import Estimate, estimate, gigabytes
from crl.run.directory import RunDirectory

_TINY = Path(__file__).parents[1] / "conf/tiny.yaml"


@dataclass(frozen=True)
class Compared:
    """One metric: what was estimated, what was found."""

    name: str
    estimated: float
    found: float

    @property
    def ratio(self) -> float:
        """Found over estimated."""
        return self.found / self.estimated


def experiment_on(model: Path, runs: Path, threads: int) -> Experiment:
    """One group of eight games on a small lake; constrained to legal moves, a random model wins some of them."""
    return load_experiment(
        _TINY,
        {
            "name": "estimated",
            "method.threads": threads,
            "method.families.0.groups": 1,
            "method.families.0.environment.size_max": 3,
            "method.families.0.environment.frozen_probability": 0.95,
            "method.families.0.evaluation_seeds.count": 1,
            "method.roles.actor": {
                "model": str(model),
                "dtype": "bfloat16",
                "context": 384,
                "sampling": {"max_new_tokens": 4, "constrain": "actions"},
                "lora": {"r": 16},
                "deepspeed": {"zero_stage": 1, "micro_batch": 2, "autocast": "bfloat16"},
            },
            "method.roles.extractor": {"weights": "actor", "context": 384, "sampling": {"max_new_tokens": 8}},
            "method.rollout.group_size": 8,
            "method.recipe.warm_start": None,
            "runtime.runs": str(runs),
            "runtime.stage_time_limit_seconds": 6 * 3600,
        },
    )


def one_round(
    experiment: Experiment, runs: Path, told: Callable[[StageDone], None] | None = None
) -> tuple[int, int, int]:
    """Peak bytes of the GPU, or without one of the largest process; bytes of checkpoints and of rows of round 1.
    `told` hears of every stage."""
    run = RunDirectory.create_or_open(experiment, runs / experiment.name)
    peaks, on_gpu, ended = [0], gpu_bytes(), threading.Event()

    def watch(before: int) -> None:
        while not ended.wait(0.2):
            peaks.append((gpu_bytes() or 0) - before)

    def look(event: Event) -> None:
        if isinstance(event, StageDone):
            if on_gpu is None:
                peaks.extend(_peaks())
            print(f"  {event.stage}: {event.seconds:.0f} s, so far {gigabytes(max(peaks))}", flush=True)
            if told is not None:
                told(event)

    if on_gpu is not None:
        threading.Thread(target=watch, args=(on_gpu,), daemon=True).start()
    with Driver(run, experiment.runtime) as driver:
        driver.subscribe(look)
        driver.run_round(0)
        driver.run_round(1)
    ended.set()
    files = [path for path in (run.path / "rounds/0001").rglob("*") if path.is_file()]
    checkpoints = sum(path.stat().st_size for path in files if "checkpoint" in path.parts)
    return max(peaks), checkpoints, sum(path.stat().st_size for path in files) - checkpoints


def compare(needed: Estimate, found: tuple[int, int, int]) -> list[Compared]:
    """Memory, disk of checkpoints."""
    memory, checkpoints, _ = found
    held = ("memory", needed.memory_bytes or 0) if gpu_bytes() is None else ("memory of the GPU", needed.device_bytes)
    return [Compared(*held, memory), Compared("checkpoints of the round", needed.written_bytes, checkpoints)]


def measure(experiment: Experiment, runs: Path, told: Callable[[StageDone], None] | None = None) -> list[Compared]:
    """Estimate, run a round, compare."""
    return compare(estimate(experiment), one_round(experiment, runs, told))


def gpu_bytes() -> int | None:
    """Bytes in use on the first GPU, by all processes; None where there is none."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    return int(total - free)


def _peaks() -> Iterator[int]:
    """The largest resident size that each process below this one ever had."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, psutil.Error):
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    yield int(line.split()[1]) * 1024


def main() -> None:
    """See the module docstring."""
    from made_model import Shape, write_model  # beside this script

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--intermediate", type=int, default=5632)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    shape = {name: getattr(arguments, name) for name in ("hidden", "layers", "intermediate")}
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder or Path(made)
        model = arguments.model or folder / "-".join(["model", *map(str, shape.values())])
        if not (model / "config.json").is_file():
            heads = arguments.hidden // 64
            write_model(model, Shape(**shape, heads=heads, key_value_heads=max(1, heads // 4), vocabulary=49_152))
        for each in measure(experiment_on(model.resolve(), folder / "runs", arguments.threads), folder / "runs"):
            print(f"{each.name}: estimated {each.estimated:,.0f}, found {each.found:,.0f}, ratio {each.ratio:.2f}")


if __name__ == "__main__":
    main()
