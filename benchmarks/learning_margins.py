"""How far the bounds of the learning tests lie from what the learners do, over seeds and thread counts.

    python benchmarks/learning_margins.py [--seeds 10] [--threads 1 2] [--learners NAME ...]

Every learner of `tests/learning/learners.py` is trained once per seed and number of threads (half an hour of one core
for all of them), and a table is printed: mean and standard deviation of each metric, its bound, and how many standard
deviations lie between. These are the numbers in `BOUNDS`. The exit code is 1 where a bound is nearer than three.
Another kind of CPU, nearly:

    ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 \\
        python benchmarks/learning_margins.py --threads 1
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.learning import learners
from tests.learning.learners import BOUNDS, DEVIATIONS


def metrics_of(learner: str, folder: Path, seed: int, threads: int) -> dict[str, float]:
    """The metrics of one training. The extractor's starting models are made with the same seed."""
    flipped = learner.endswith("flipped")
    if learner.startswith("actor"):
        run = learners.train_actor(folder, seed, threads=threads, flipped=flipped)
        return learners.flipped_actor_metrics(run) if flipped else learners.actor_metrics(run)
    start = learners.make_starts(folder / "starts", seed, threads=threads)
    run = learners.train_extractor(folder, start, seed, threads=threads, flipped=flipped)
    return learners.flipped_extractor_metrics(run) if flipped else learners.extractor_metrics(run)


def main() -> int:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--learners", nargs="+", choices=list(BOUNDS), default=list(BOUNDS))
    asked = parser.parse_args()
    near = 0
    for learner in asked.learners:
        measured: dict[str, list[float]] = defaultdict(list)
        for seed in range(asked.seeds):
            for threads in asked.threads:
                with tempfile.TemporaryDirectory() as folder:
                    found = metrics_of(learner, Path(folder), seed, threads)
                print(f"{learner}, seed {seed}, threads {threads}: {found}", file=sys.stderr, flush=True)
                for name, value in found.items():
                    measured[name].append(value)
        print(f"\n{learner} ({asked.seeds} seeds, threads {asked.threads})")
        print(f"  {'metric':<28} {'mean':>7} {'sd':>7} {'least':>7} {'most':>7}   bound")
        for name, values in measured.items():
            bound = BOUNDS[learner][name]
            mean, deviation = statistics.mean(values), statistics.stdev(values)
            distance = bound.distance(mean, deviation)
            near += distance < DEVIATIONS
            print(
                f"  {name:<28} {mean:7.3f} {deviation:7.3f} {min(values):7.3f} {max(values):7.3f}"
                f"   {bound.above:g} to {bound.below:g}: {distance:.1f} deviations away",
                flush=True,
            )
    return int(near > 0)


if __name__ == "__main__":
    sys.exit(main())
