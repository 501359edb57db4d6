"""What the data checks of a round cost: Great Expectations against the compiled pass, on the rows of a run.

    python benchmarks/checks.py RUN [RUN …] [--repetitions 9]

Both check the rows of the newest round of each run by the project's suites: every table of every stage, all of their
expectations. They take turns, one after the other in this process on one thread, after a turn each that is not counted
(imports and first uses; the import of Great Expectations is measured by itself). Printed are the milliseconds of
processor time of a round (median, lowest and highest), which other work on the machine changes little, and the ratio
within each turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from crl.checks import check_tables
from crl.checks.stage import numbered
from crl.checks.suites import applying, key_of, suite_of
from crl.records import ROW_TYPE_BY_TABLE, Row
from crl.run.directory import RunDirectory

Stages = Sequence[Mapping[type[Row], pa.Table]]


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+")
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    print(f"import of Great Expectations: {1000 * seconds(_import):.0f} ms, once per process")
    for path in arguments.runs:
        run = RunDirectory.open(path)
        stages, rules = newest_round(run)
        rows = sum(table.num_rows for tables in stages for table in tables.values())
        compare(f"{run.experiment_name}: {rules} expectations on {rows} rows", stages, arguments.repetitions)


def newest_round(run: RunDirectory) -> tuple[Stages, int]:
    """The tables of each stage of the newest round, and the number of expectations they are held against."""
    number, stages, rules = run.rounds()[-1], [], 0
    for stage in run.complete_stages(number):
        names = [Path(name).stem for name in run.manifest(number, stage).digested.files if name.endswith(".parquet")]
        tables = {ROW_TYPE_BY_TABLE[name]: run.read(number, stage, ROW_TYPE_BY_TABLE[name]) for name in names}
        rules += sum(len(applying(suite_of(name)["expectations"], frozenset(names))) for name in names)
        stages.append(tables)
    return stages, rules


def compare(title: str, stages: Stages, repetitions: int) -> None:
    """Measure both in turns and print what they took."""
    compiled(stages)
    native(stages)
    turns = [(seconds(lambda: compiled(stages)), seconds(lambda: native(stages))) for _ in range(repetitions)]
    print(title)
    print(f"  compiled pass      {spread([1000 * quick for quick, _ in turns])} ms")
    print(f"  Great Expectations {spread([1000 * slow for _, slow in turns])} ms")
    print(f"  ratio              {spread([slow / quick for quick, slow in turns])}")


def compiled(stages: Stages) -> None:
    """As a stage does it."""
    for tables in stages:
        check_tables(tables, where="benchmark")


def native(stages: Stages) -> None:
    """Every expectation by Great Expectations itself."""
    from crl.checks.native import validate

    for tables in stages:
        prepared = numbered(tables)
        for name in prepared:
            rules = applying(suite_of(name)["expectations"], frozenset(prepared))
            assert validate(name, key_of(name), rules, prepared).success


def seconds(work: Callable[[], None]) -> float:
    """Processor seconds that something takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def spread(values: Sequence[float]) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def _import() -> None:
    import crl.checks.native  # noqa: F401


if __name__ == "__main__":
    main()
