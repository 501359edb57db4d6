"""The page of every key: what is required, and that each table is there once."""

from __future__ import annotations

import re
from collections import Counter

from pydantic import Field

from crl.config.base import Model
from docs.config_page import model_tables, page


class Inner(Model):
    """What is inside."""

    size: int = Field(1, ge=1, le=9, description="How large.")


class Outer(Model):
    """What is outside."""

    name: str = Field(description="Its name.")
    inner: Inner = Inner()
    options: dict[str, str] = Field(default_factory=dict, description="Whatever else.")
    names: list[str] = Field(default_factory=list, description="Other names.")


def test_only_what_has_no_default_is_required() -> None:
    assert model_tables(Outer).splitlines()[7:11] == [
        "| `name` | string | required | Its name. |",
        "| `inner` | [Inner](#inner) |  | What is inside. |",
        "| `options` | one string per name | `{}` | Whatever else. |",
        "| `names` | list of string | `[]` | Other names. |",
    ]
    assert "\n## Inner\n" in model_tables(Outer)


def test_every_table_is_on_the_page_once() -> None:
    headings = Counter(re.findall(r"^## (.+)$", page(), re.MULTILINE))
    assert len(headings) > 50 and set(headings.values()) == {1}


def test_what_an_experiment_holds_is_linked_from_other_pages() -> None:
    from crl.lab.warm.config import WarmStartFile

    tables = model_tables(WarmStartFile)
    assert "[DeepSpeedConfig](config.md#deepspeedconfig)" in tables and "[Realms](config.md#realms)" in tables
    assert "\n## DeepSpeedConfig\n" not in tables and "\n## Realms\n" not in tables
