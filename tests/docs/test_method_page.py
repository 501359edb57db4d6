"""docs/method.md: its table names every stage of a round, and every table that the stage writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.records import BankEntry
from crl.rounds.publish import BANK_TABLES
from crl.rounds.stage import Recipe, draw_of
from docs.schema_page import recipes

PAGE = (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")


def rows() -> dict[str, str]:
    """By stage, what the last column says that it writes."""
    table = PAGE.partition("## A round, stage by stage")[2].partition("Round 0 is")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[-1] for row in cells[1:]}


@pytest.mark.parametrize("recipe", recipes(), ids=["overlapped", "with every mechanism"])
def test_the_table_of_a_round_names_what_each_stage_writes(recipe: Recipe) -> None:
    written = rows()
    for stage in recipe.stages:
        said = written[re.sub("^update_.*", "update_*role*", draw_of(stage.name)[0])]
        tables = {row.table for row in stage.writes} - {BankEntry.table}
        assert tables <= set(re.findall(r"\w+", said)), f"{stage.name} writes {tables}, the page says {said}"


def test_round_0_names_what_its_stages_write() -> None:
    said = set(re.findall(r"\w+", PAGE.partition("Round 0 is")[2].partition("\n\n")[0]))
    for recipe in recipes():
        for stage in recipe.preparation:
            assert stage.name in said
            assert {row.table for row in stage.writes if row not in BANK_TABLES} <= said
