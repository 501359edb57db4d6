"""Does training teach to use a true note? Games that were shown one, and how many of them were won, round by round.

    python benchmarks/true_notes.py runs/coevolution-again [--out docs/results/coevolution_again_notes.parquet]

Reads the finished runs of a study in realms: every guided training game of every round. A note is true if it names the
realm's key and goal, as the hidden rule has them (`RealmsEnvironment.truth`; nothing that is trained sees it). Writes
one row per run and round, and prints the shares by arm and ten rounds, each the mean over seeds with its 95 % interval.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import crl
from crl.envs import make_environment
from crl.lab.study.statistics import interval
from crl.lab.study.table import interval_text
from crl.protocols import Judge

_RUN = re.compile(r".*?-(?P<arm>[a-z_]+)-s(?P<seed>\d+)")
_TEN = """
SELECT arm, seed, (round - 1) // 10 AS ten, sum(shown) / sum(guided) AS shown, sum(won) / sum(shown) AS won
FROM table_of_rounds GROUP BY ALL HAVING sum(shown) > 0 ORDER BY ALL
"""


def rounds_of(path: Path) -> list[dict[str, object]]:
    """Of each round of a run: guided games, those shown a true note, those of them that were won."""
    named = _RUN.fullmatch(path.name)
    if named is None:
        raise SystemExit(f"{path} is no run of a study: its name does not end in -ARM-sSEED")
    run = crl.open(path)
    judges: dict[str, Judge] = {}
    for family in run.method.families:
        environment = make_environment(family)
        if not isinstance(environment, Judge):
            raise SystemExit(f"{path}: nothing knows which notes about {family.name} are true")
        judges[family.name] = environment
    games = run.sql("SELECT round, family, experiences, success FROM episodes WHERE guided ORDER BY round").fetchall()
    rounds: dict[int, list[int]] = {}
    for number, family, texts, success in games:
        counts = rounds.setdefault(number, [0, 0, 0])
        true = any(judges[family].truth(text) == 1 for text in texts)
        counts[0] += 1
        counts[1] += true
        counts[2] += true and success
    return [
        {"arm": named["arm"], "seed": int(named["seed"]), "round": number}
        | dict(zip(("guided", "shown", "won"), counts, strict=True))
        for number, counts in rounds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="directory with the runs of a study")
    parser.add_argument("--out", type=Path, help="Parquet file to write")
    arguments = parser.parse_args()
    runs = sorted(path.parent for path in arguments.study.glob("*/experiment.yaml"))
    table_of_rounds = pa.Table.from_pylist([row for run in runs for row in rounds_of(run)])
    if arguments.out is not None:
        pq.write_table(table_of_rounds, arguments.out)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for arm, _, ten, shown, won in duckdb.sql(_TEN).fetchall():
        found.setdefault((arm, ten), []).append((shown, won))
    print("| arm | rounds | seeds | shown a true note | won when shown one |\n|---|---|---|---|---|")
    for (arm, ten), values in found.items():
        shown, won = (interval_text(interval(each)) for each in zip(*values, strict=True))
        print(f"| {arm} | {10 * ten + 1} to {10 * ten + 10} | {len(values)} | {shown} | {won} |")


if __name__ == "__main__":
    main()
