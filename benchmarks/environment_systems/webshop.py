"""WebShop: what loading, a reset and a step cost with 1,000 and with 100,000 products of our own catalog.

    python -m benchmarks.environment_systems.webshop [--products 1000 100000] [--steps 2000]

Visits are random: one action in four is a search for words of the instruction, the others click what can be clicked.
Times are those of the processor, which other load on the machine stretches least. The original site is not measured: it
needs Java, spaCy and its own download.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass

import psutil

from crl.worlds.webshop import WebShopConfig
from crl.worlds.webshop.catalog import _own


@dataclass(frozen=True)
class Metrics:
    """What one catalog costs."""

    name: str
    load_seconds: float
    """Making the catalog and its index, once per process."""
    steps: float
    """Steps per second, one episode at a time."""
    resets: float
    """Resets per second, one episode at a time."""
    worst_step_ms: float
    """The 99th percentile of a step."""
    megabytes: float
    """What the process grew by: the catalog and 128 visits that are under way."""


def measure(products: int, *, steps: int = 2000, view: str = "text") -> Metrics:
    """Load a catalog of so many products, and play so many random steps in it."""
    _own.cache_clear()
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.process_time()
    config = WebShopConfig(products=products, view=view)  # type: ignore[arg-type]
    environment = config.make()
    loaded = time.process_time() - began
    generator = random.Random(0)
    stepping: list[float] = []
    resetting: list[float] = []
    while len(stepping) < steps:
        began = time.process_time()
        (start,) = environment.reset_many([len(resetting)])
        resetting.append(time.process_time() - began)
        done, words = False, start.goal.split()
        while not done and len(stepping) < steps:
            clickable = environment.site.clickable(environment._slots[0].visit)
            searches = not clickable or generator.random() < 0.25
            named = " ".join(generator.sample(words, min(len(words), 8)))
            action = f"search[{named}]" if searches else f"click[{generator.choice(clickable)}]"
            began = time.process_time()
            done = environment.step_many({0: action})[0].done
            stepping.append(time.process_time() - began)
    environment.reset_many(range(128))
    environment.step_many(dict.fromkeys(range(128), "search[black]"))
    return Metrics(
        name=f"webshop, {products:,} products",
        load_seconds=loaded,
        steps=len(stepping) / sum(stepping),
        resets=len(resetting) / max(sum(resetting), 1e-9),
        worst_step_ms=1000 * statistics.quantiles(stepping, n=100)[-1],
        megabytes=(process.memory_info().rss - before) / 2**20,
    )


def main() -> None:
    """Print a line per catalog."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--products", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    for products in options.products:
        found = measure(products, steps=options.steps)
        print(
            f"{found.name}: load {found.load_seconds:.1f} s, {found.steps:,.0f} steps/s "
            f"({1000 / found.steps:.2f} ms, 99th percentile {found.worst_step_ms:.2f} ms), "
            f"{found.resets:,.0f} resets/s, {found.megabytes:,.0f} MB"
        )


if __name__ == "__main__":
    main()
