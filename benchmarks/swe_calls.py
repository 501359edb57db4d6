"""What a tool call costs beside its command, and what grading costs, for episodes side by side.

    python benchmarks/swe_calls.py [--episodes 16] [--calls 20]

Sixteen episodes of the tasks that ship, stepped by 1, 2 and 16 threads. The command is `true`: all of the time is
overhead. The load of the machine is printed, for it decides most of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from crl.worlds.swe import SweConfig

COMMAND = json.dumps({"name": "execute_bash", "arguments": {"command": "true"}})
SUBMIT = json.dumps({"name": "submit", "arguments": {}})


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--calls", type=int, default=20)
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        config = SweConfig(max_turns=1000)
        environments = [stack.enter_context(closing(config.make())) for _ in range(chosen.episodes)]
        for seed, environment in enumerate(environments):
            environment.reset_many([seed])
            environment.step_many({0: COMMAND})  # makes the work tree
        print("| threads | median ms | 90 % ms | ms per call of all |\n|---:|---:|---:|---:|")
        for threads in sorted({1, 2, chosen.episodes}):
            times: list[float] = []

            def play(index: int, taken: list[float] = times) -> None:
                for _ in range(chosen.calls):
                    began = time.perf_counter()
                    environments[index].step_many({0: COMMAND})
                    taken.append(1000 * (time.perf_counter() - began))

            began = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(play, range(chosen.episodes)))
            spent = 1000 * (time.perf_counter() - began) / len(times)
            ninth = statistics.quantiles(times, n=10)[-1]
            print(f"| {threads} | {statistics.median(times):.0f} | {ninth:.0f} | {spent:.0f} |")
        graded = []
        for environment in environments:
            began = time.perf_counter()
            environment.step_many({0: SUBMIT})
            graded.append(time.perf_counter() - began)
        print(f"grading one task: median {1000 * statistics.median(graded):.0f} ms")


if __name__ == "__main__":
    main()
