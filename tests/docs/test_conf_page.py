"""conf/README.md: every file of conf/ has its line there, and no line is about a file that is gone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

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


def test_every_part_of_a_recipe_names_a_setting_and_a_test_that_are_there() -> None:
    page = (CONF.parent / "docs/recipe_parts.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.endswith("` |")]
    assert len(rows) >= 20 and all(len(row) == 5 for row in rows)
    for *_, test in rows:
        [path] = re.findall(r"`(tests/[\w/]+\.py)`", test)
        assert (CONF.parent / path).is_file(), path
