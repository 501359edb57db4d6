"""Does training teach to use a true experience? Games that were shown one, and how many of them were won, round by
round.

    python benchmarks/true_experiences.py runs/coevolution-again [--out
    research/results/coevolution_again_experiences.parquet]

Reads the finished runs of a study whose environments know what is true (realms, lakes): every training game of every
round. An experience is true if it says what the hidden rule has (`truth` of the environment; nothing that is trained
sees it): key and goal of a realm, the goal's symbol of a lake. Writes one row per run and round, and prints shares by
arm and ten rounds, each the mean over seeds with its 95 % interval: of the games that were shown a true experience, of
those that were shown another, and of the unguided ones beside them.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import crl
from crl.envs import make_environment
from crl.lab.study.statistics import interval
from crl.lab.study.table import interval_text
from crl.protocols import KnowsTruth

_RUN = re.compile(r".*?-(?P<arm>[a-z][a-z0-9_]*)-s(?P<seed>\d+)")
_TEN = """
SELECT
  arm, seed, (round - 1) // 10 AS ten, sum(shown) / sum(guided) AS shown, sum(won) / sum(shown) AS won,
  sum(won_otherwise) / nullif(sum(guided) - sum(shown), 0) AS won_otherwise,
  sum(won_free) / nullif(sum(free), 0) AS won_free
FROM table_of_rounds GROUP BY ALL HAVING sum(shown) > 0 ORDER BY ALL
"""


def rounds_of(path: Path) -> list[dict[str, object]]:
    """Of each round that guided any game: guided games, those shown a true experience, how many of these and of the
    others were won; unguided games, and how many were won."""
    named = _RUN.fullmatch(path.name)
    if named is None:
        raise SystemExit(f"{path} is no run of a study: its name does not end in -ARM-sSEED")
    run = crl.open(path)
    families = {family.name: family for family in run.method.families}

    @cache
    def environment_of(name: str, changes: int) -> KnowsTruth:
        """By the world after so many of its changes."""
        rounds = [0, *(change.round for change in families[name].changes)]
        environment = make_environment(families[name].in_round(rounds[changes]))
        if not isinstance(environment, KnowsTruth):
            raise SystemExit(f"{path}: nothing knows which experiences about {name} are true")
        return environment

    # Trials of experiences are episodes of a stage of their own.
    games = run.sql(
        "SELECT round, family, guided, experiences, success FROM episodes WHERE draw_of(stage) = 'collect' "
        "ORDER BY round"
    ).fetchall()
    rounds: dict[int, Counter[str]] = defaultdict(Counter)
    for number, family, guided, texts, success in games:
        environment = environment_of(family, sum(change.round <= number for change in families[family].changes))
        true = any(environment.truth(text) == 1 for text in texts)
        rounds[number] += Counter(
            guided=guided, shown=true, won=true and success, won_otherwise=guided and not true and success,
            free=not guided, won_free=not guided and success,
        )  # fmt: skip
    return [
        {"arm": named["arm"], "seed": int(named["seed"]), "round": number}
        | {name: counts[name] for name in ("guided", "shown", "won", "won_otherwise", "free", "won_free")}
        for number, counts in rounds.items()
        if counts["guided"]
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
    found: dict[tuple[str, int], list[tuple[float | None, ...]]] = {}
    for arm, _, ten, *shares in duckdb.sql(_TEN).fetchall():
        found.setdefault((arm, ten), []).append(tuple(shares))
    print("| arm | rounds | seeds | shown a true experience | won when shown one | when shown another | unguided |")
    print("|---|---|---|---|---|---|---|")
    for (arm, ten), values in found.items():
        cells = [
            interval_text(interval(known)) if (known := [each for each in column if each is not None]) else "–"
            for column in zip(*values, strict=True)
        ]
        print(f"| {arm} | {10 * ten + 1} to {10 * ten + 10} | {len(values)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
