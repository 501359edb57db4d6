"""The table of chat templates on the page of models is what becomes of each family's template."""

from __future__ import annotations

import csv
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from crl.errors import BadInput
from crl.policies.chat import ChatFormat
from tests.unit.policies.families import FAMILIES, TRL, tokenizer_of

pytestmark = pytest.mark.slow

TABLE = Path(__file__).parents[2] / "docs" / "results" / "templates.csv"
"""Made by this test with CRL_WRITE_MODELS=1."""
NAMES = ["family", "text", "template", "earlier turns", "tools"]


def line(family: str) -> list[str]:
    """What becomes of a template."""
    text = "TRL's copy" if family in TRL else "written for the tests"
    try:
        chat = ChatFormat(tokenizer_of(family), family)
    except BadInput as error:
        return [family, text, f"refused: {error.found}", "", ""]
    turns = "kept; the template would change them" if chat.rewrites else "as the template renders them"
    return [family, text, "own", turns, "native" if chat.takes_tools else "in the prompt"]


def test_the_table_of_templates_is_current() -> None:
    made_with, lines = [f"trl {version('trl')}"], [line(family) for family in FAMILIES]
    if os.environ.get("CRL_WRITE_MODELS"):
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([made_with, NAMES, *lines])
    with TABLE.open(encoding="utf-8", newline="") as file:
        versions, names, *found = csv.reader(file)
    if versions != made_with:
        pytest.skip(f"made with {versions}")
    assert names == NAMES and found == lines
    assert sum(each[2] != "own" for each in found) <= 2
