"""Raw results of studies, `research/results/*.parquet`, and what their tables are computed from again.

The arithmetic here shares nothing with `crl.lab`: DuckDB reads the rows, scipy has the intervals.
"""

import re
from collections import defaultdict
from pathlib import Path

import duckdb
import numpy as np
import yaml
from scipy import stats

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "research" / "results"
PAGES = {
    name: f"{name}.md"
    for name in (
        "recipes",
        "recipes_lakes",
        "coevolution",
        "coevolution_again",
        "coevolution_sooner",
        "controls",
        "trials",
        "change",
        "smollm2",
        "objectives",
        "selection",
        "quickstart_arms",
        "quickstart_long",
        "long_runs",
        "long_runs_again",
        "falling",
        "internalization",
        "compared_notes",
        "better_bank",
    )
} | {"scale": "scaling.md"}
"""The page that a study's tables are in, by the name of its raw results."""
ROUNDING = 0.005 + 1e-9
BUDGETS = {
    "episodes": "training_episodes",
    "generated tokens": "training_tokens",
    "real environment steps": "training_real_steps",
    "seconds of training": "training_seconds",
}


class Raw:
    """The rows of a study, as curves by (arm, bank) and seed."""

    def __init__(self, name: str):
        folder = ROOT / "conf" / "study"
        study = yaml.safe_load((folder / f"{name}.yaml").read_text())
        taken = yaml.safe_load((folder / study["arms_from"]).read_text())["arms"] if "arms_from" in study else {}
        self.arm_of = {arm.get("title", key): key for key, arm in (taken | study["arms"]).items()}
        self.scales: dict[str, dict[str, list[tuple[str, str]]]] = {}
        titles = {key: title for title, key in self.arm_of.items()}
        for varied, scale in study.get("scales", {}).items():
            points = self.scales[scale["title"]] = {}
            for arm in scale["arms"]:
                for value, changes in scale["values"].items():
                    key = f"{arm}_{varied}_{value}".replace(".", "_") if changes else arm
                    points.setdefault(titles[arm], []).append((str(value), key))
                    if changes:
                        self.arm_of[f"{titles[arm]}, {scale['title']} {value}"] = key
        self.seeds = study["seeds"]
        self.last = study.get("last", 1)
        self.level = study.get("level")
        table = duckdb.sql(f"FROM '{RESULTS / name}.parquet' ORDER BY round")
        columns, rows = table.columns, table.fetchall()
        self.curves: dict[tuple[str, bool], dict[int, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            point = dict(zip(columns, row, strict=True))
            self.curves[point["arm"], point["bank"]][point["seed"]].append(point)

    def final(self, arm: str, bank: bool) -> dict[int, float]:
        return {
            seed: float(np.mean([point["success"] for point in points[-self.last :]]))
            for seed, points in self.curves.get((arm, bank), {}).items()
        }

    def area(self, arm: str, bank: bool) -> dict[int, float]:
        """Mean success over the rounds of the evaluations, by the trapezoid rule."""
        return {
            seed: float(
                np.trapezoid([p["success"] for p in points], [p["round"] for p in points]) / points[-1]["round"]
            )
            for seed, points in self.curves.get((arm, bank), {}).items()
        }

    def best(self, arm: str, bank: bool) -> dict[int, float]:
        """The highest mean of as many evaluations in a row as the end is the mean of."""
        return {
            seed: float(
                max(
                    np.mean([p["success"] for p in points[at : at + self.last]])
                    for at in range(1, len(points) - self.last + 1)
                )
            )
            for seed, points in self.curves.get((arm, bank), {}).items()
        }

    def at(self, column: str, amount: float, arm: str, bank: bool) -> dict[int, float]:
        """Success where a run had used so much of a budget, on the straight line between two evaluations."""
        return {
            seed: float(np.interp(amount, [p[column] for p in points], [p["success"] for p in points]))
            for seed, points in self.curves.get((arm, bank), {}).items()
        }

    def used(self, column: str, *arms: str) -> list[int]:
        """What each run (of some arms) used of a budget in all; 0 where nobody noted it."""
        return [
            int(points[-1].get(column) or 0)
            for (arm, _), runs in self.curves.items()
            if arm in arms or not arms
            for points in runs.values()
        ]


def mean_until(points: list[dict[str, float]], column: str, amount: float) -> float:
    """Mean success of a run while it used an amount of a budget, on straight lines between evaluations."""
    used, success = [p[column] for p in points], [p["success"] for p in points]
    at = [*(each for each in used if each < amount), amount]
    return float(np.trapezoid(np.interp(at, used, success), at) / amount)


def interval_of(values: dict[int, float]) -> list[float]:
    sample = np.array(list(values.values()))
    mean = sample.mean()
    if len(sample) == 1:
        return [mean]
    if not sample.std():
        return [mean, mean, mean]
    low, high = stats.t.interval(0.95, len(sample) - 1, loc=mean, scale=stats.sem(sample))
    return [mean, low, high]


def difference_of(values: dict[int, float], reference: dict[int, float]) -> list[float]:
    return interval_of({seed: value - reference[seed] for seed, value in values.items() if seed in reference})


def numbers_in(cell: str) -> list[float]:
    return [float(text.replace("−", "-")) for text in re.findall(r"[+−]?\d+\.\d+", cell)]


def agree(cell: str, expected: list[float] | None) -> None:
    if expected is None:
        assert cell == "–"
        return
    found = numbers_in(cell)
    assert len(found) == len(expected), cell
    assert np.allclose(found, expected, rtol=0, atol=ROUNDING), (cell, expected)


def table_under(page: str, title: str) -> list[list[str]]:
    """The rows of the first table after a heading; the first of them has the names of the columns."""
    after = page.split(f"## {title}\n", 1)
    assert len(after) == 2, f"{title}: no such heading"
    lines = after[1].split("\n|", 1)[1].split("\n\n", 1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if set("".join(row)) != {"-"}]
