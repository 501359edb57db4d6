"""`data/splits.csv` and docs/splits.md: the seeds that the shipped experiments train on and hold out, fixed and listed;
with the first seed of the held-out levels, and the moves that these need."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.splits import csv_text, page
from crl.config.load import load_experiment

ROOT = Path(__file__).parents[2]
COLUMNS = [
    "experiment", "family", "environment", "train_first", "train_last", "held_out_first", "held_out_last",
    "held_out_from", "held_out_moves",
]  # fmt: skip
NO_EXPERIMENTS = {"prompts", "study", "warm"}
BY_SEED_ALONE = {"FrozenLake-v1", "GuessTheNumber-v0"}
"""Environments of others, which the bridges of Gymnasium and TextArena play."""


def shipped():
    for path in sorted(ROOT.glob("conf/**/*.yaml")):
        if path.relative_to(ROOT / "conf").parts[0] in NO_EXPERIMENTS:
            continue
        experiment = load_experiment(path)
        for family in experiment.method.families:
            train, held_out = family.train_seeds, family.evaluation_seeds
            yield {
                "experiment": experiment.name,
                "family": family.name,
                "environment": getattr(family.environment, "id", family.environment.kind),
                "train_first": str(train.start),
                "train_last": str(train.start + train.count - 1),
                "held_out_first": str(held_out.start),
                "held_out_last": str(held_out.start + held_out.count - 1),
                "held_out_from": str(family.environment.held_out_from),
                "held_out_moves": str(getattr(family.environment, "held_out_moves", "")),
            }


def test_the_splits_that_ship_are_those_of_the_experiments():
    with (ROOT / "data/splits.csv").open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        listed = list(reader)
    assert reader.fieldnames == COLUMNS
    assert listed == list(shipped()), (
        "a split that changes makes earlier evaluations incomparable: say so in the commit"
    )


def test_the_data_and_the_page_are_current():
    data = (ROOT / "data/splits.csv").read_text(encoding="utf-8")
    assert data == csv_text(), "write it anew: python -m benchmarks.splits --csv > data/splits.csv"
    text = (ROOT / "docs/splits.md").read_text(encoding="utf-8")
    assert text == page(), "write it anew: python -m benchmarks.splits > docs/splits.md"


def test_the_page_lists_every_split_and_every_environment():
    text = (ROOT / "docs/splits.md").read_text(encoding="utf-8")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    shared = {tuple(split): experiments for *split, experiments in lines}
    assert len(shared) == len(lines)
    for row in shipped():
        episodes = int(row["held_out_last"]) - int(row["held_out_first"]) + 1
        training, held_out = (f"{row[f'{side}_first']}–{row[f'{side}_last']}" for side in ("train", "held_out"))
        listed = shared[f"`{row['environment']}`", training, held_out, str(episodes)].split("; ")
        (families,) = [each.partition(": ")[2] for each in listed if each.partition(": ")[0] == row["experiment"]]
        assert row["family"] in families.split(", ")
    (by_content,) = [line for line in text.splitlines() if line.startswith("- Held out by content, from seed 1000000")]
    assert all(f"`{kind}`" in by_content for kind in ("sokoban", "frozenlake", "realms", "shrines"))


def test_what_is_held_out_is_never_trained_on():
    with (ROOT / "data/splits.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            train = range(int(row["train_first"]), int(row["train_last"]) + 1)
            held_out = range(int(row["held_out_first"]), int(row["held_out_last"]) + 1)
            assert len(train) and len(held_out)
            if row["held_out_from"] == "None":
                # The environment does not say which level a seed is, so seeds are all there is to hold out.
                assert row["environment"] in BY_SEED_ALONE and train[-1] < held_out[0]
                continue
            assert train[-1] < int(row["held_out_from"]) <= held_out[0], "seeds on either side draw other levels"
