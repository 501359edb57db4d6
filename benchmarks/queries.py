"""The questions of docs/queries.md over many rounds of a large bank, through `crl.report.views.query`.

    python benchmarks/queries.py [--rounds 100] [--entries 20000] [--repetitions 5] [--run DIRECTORY]

The run is made up from a seed, through the real stage writer: every round changes 1 to 5 % of the bank, plays 512
episodes and retrieves 16 candidates for each guided one. Printed are median and worst seconds of every question, each
asked so many times in turn, opening the run included, and the median of the processor's seconds, over all its cores:
what remains comparable on a machine that does something else as well. The last row is opening the run alone. DIRECTORY
keeps the run for another time.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from made_run import Size, make

from crl.report.views import connect, query

_PAGE = Path(__file__).parents[1] / "docs" / "queries.md"
_QUESTION = re.compile(r"^## \d+\. (?P<title>[^\n]*)\n.*?```sql\n(?P<sql>.*?)```", re.MULTILINE | re.DOTALL)
_LIMIT_SECONDS = 1.0


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--run", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.run or Path(scratch)
        run = root / "tiny"
        if not run.is_dir():
            run = make(root, arguments.rounds, size_of(arguments.entries))
        facts = (
            "SELECT count(*), sum(entries), avg(changed + removed) / avg(entries) FROM bank_snapshots WHERE round > 0"
        )
        rounds, rows, share = query(run, facts)[1][0]
        print(f"{rounds} rounds, {rows / rounds:,.0f} entries per round, {share:.1%} of them changed in each\n")
        measure(run, arguments.repetitions)


def size_of(entries: int) -> Size:
    """A run whose rounds change about 3 % of so many entries."""
    return Size(
        entries=entries, changes=entries // 40, merges=entries // 400, capacity=entries // 4, groups=64, members=8,
        candidates=16, tokens=200, seeds=20,
    )  # fmt: skip


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - spent


def measure(run: Path, repetitions: int) -> None:
    """Print one row per question."""
    asked = [(match["title"], match["sql"]) for match in _QUESTION.finditer(_PAGE.read_text(encoding="utf-8"))]
    taken: dict[str, list[tuple[float, float]]] = {title: [] for title, _ in asked}
    opened = []
    for _ in range(repetitions):
        opened.append(timed(lambda: connect(run).close()))
        for title, sql in asked:
            taken[title].append(timed(lambda sql=sql: query(run, sql)))
    print(f"| question | median (s) | worst of {repetitions} (s) | processor (s) |\n|---|---:|---:|---:|")
    for title, seconds in {**taken, "(opening the run, part of each)": opened}.items():
        wall, processor = zip(*seconds, strict=True)
        print(f"| {title} | {statistics.median(wall):.2f} | {max(wall):.2f} | {statistics.median(processor):.2f} |")
    slow = [title for title, seconds in taken.items() if max(wall for wall, _ in seconds) > _LIMIT_SECONDS]
    print(f"\nlimit {_LIMIT_SECONDS:.0f} s: " + (f"missed by {', '.join(slow)}" if slow else "all within it"))


if __name__ == "__main__":
    main()
