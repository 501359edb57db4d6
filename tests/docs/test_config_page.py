"""The page of every key: what is required, and that each key is there."""

from __future__ import annotations

import re
from collections import Counter

from pydantic import Field

from crl.config.base import Model
from crl.config.keys import models
from docs.config_page import model_lists, page


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
    lists = model_lists(Outer)
    for line in (
        "- `name` (required: string): Its name.",
        "- `inner` (mapping): What is inside.",
        "- `inner.size` (`1`, 1–9): How large.",
        "- `options` (`{}`, string by name): Whatever else.",
        "- `names` (`[]`, list of strings): Other names.",
    ):
        assert f"{line}\n" in lists
    assert lists.startswith("\n## Outer\n\nWhat is outside.\n")


def test_every_key_is_on_the_page_and_each_section_once() -> None:
    text = page()
    headings = Counter(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert len(headings) > 40 and set(headings.values()) == {1}
    for name, model in models().items():
        for key in model.get("properties", {}):
            known = f"`{key}`" in text or f".{key}`" in text
            assert known or key == "kind" or name.startswith(("Recorded", "Experiment")), f"{name}.{key}"


def test_links_lead_to_sections_and_no_line_begins_a_list_by_chance() -> None:
    text = page()
    anchors = {
        re.sub(r"[^\w\s-]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
    assert re.findall(r"^ +(?:[-+*]|\d+[.)]) .*$", text, re.MULTILINE) == []


def test_a_name_of_another_library_stands_beside_ours_where_it_differs() -> None:
    text = " ".join(page().split())
    assert "`group_size` (`8`, 2–1,024): K: rollouts per task. ≈ `num_generations`" in text
    assert "= `max_num_seqs`" in text and "= `learning_rate`" not in text


def test_what_an_experiment_holds_is_linked_from_other_pages() -> None:
    from crl.lab.warm.config import WarmStartFile

    lists = model_lists(WarmStartFile)
    assert "[mapping](config.md#methodrolesdeepspeed)" in lists and "[mapping](config.md#realms)" in lists
    assert "`zero_stage`" not in lists and "`longest_path`" not in lists
