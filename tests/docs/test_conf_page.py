"""conf/README.md: every file of conf/ has its line there, and no line is about a file that is gone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pydantic import BaseModel

from crl.config.method import RECIPES
from crl.config.other_names import models_in

CONF = Path(__file__).parents[2] / "conf"
LINES = (CONF / "README.md").read_text(encoding="utf-8").splitlines()
NAME = re.compile(r"`([\w/-]+\.yaml)`")


def test_every_experiment_and_study_has_its_line() -> None:
    files = {path.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml")}
    told = Counter(name for line in LINES if line.startswith("- ") for name in NAME.findall(line))
    assert {name for name in files if not name.startswith("prompts/")} == set(told)
    assert set(told.values()) == {1}, "a file is in one place of the list"


def test_every_file_of_prompts_says_what_it_is_for() -> None:
    for path in (CONF / "prompts").glob("*.yaml"):
        assert path.read_text(encoding="utf-8").startswith("# "), path.name


def test_it_is_read_at_a_glance() -> None:
    assert len(LINES) <= 80 and all(len(line) <= 120 for line in LINES)


def test_every_file_of_a_paper_says_where_it_differs() -> None:
    for path in (CONF / "paper").glob("*.yaml"):
        head = path.read_text(encoding="utf-8").partition("\nname: ")[0].replace("\n# ", " ").lower()
        listed = "where it differs" in head and "# -" in path.read_text(encoding="utf-8").partition("\nname: ")[0]
        beside = re.search(r"(minihack_room|erl_frozenlake)\.yaml", head)
        assert listed or ("where it differs" in head and beside), path.name


KINDS = {"Experiential RL": "erl", "DreamGym": "dreamgym", "Importance-weighted replay": "importance_replay"}


@pytest.mark.parametrize("title", [title for title, kind in KINDS.items() if kind in RECIPES.names()])
def test_every_part_of_a_recipe_names_a_setting_and_tests_that_are_there(title: str) -> None:
    page = (CONF.parent / "docs/recipe_parts.md").read_text(encoding="utf-8")
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    (folder,) = re.findall(r"Tests: `(tests/[\w/]+)`", section)
    assert list((CONF.parent / folder).glob("test_*equations.py"))
    rows = [line.split(" | ") for line in section.splitlines() if line.endswith("` |")]
    assert len(rows) >= 6 and all(len(row) == 3 for row in rows)
    config = RECIPES.load(KINDS[title])
    for *_, settings in rows:
        key = re.findall(r"`([\w.]+)", settings)[0].split(".")
        assert {key[0], key[-1]} <= names_below(config), settings


def names_below(config: type[BaseModel]) -> set[str]:
    """Names of the fields of a model and of those that it holds."""
    found = set(config.model_fields)
    for field, info in config.model_fields.items():
        for _, held in models_in(info.annotation, field):
            found |= names_below(held)
    return found
