"""docs/glossary.md: short, in the index, with every word of ours that names, settings and tables still use."""

from __future__ import annotations

import re

from tests.docs.test_commands import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
DEFINED = re.findall(r"^- \*\*(.+?)\.\*\* (.+?)(?=\n- |\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
TERMS = {term.strip().lower() for terms, _ in DEFINED for term in terms.split(",")}
KEPT = {"wave", "part", "track", "head", "stream", "realm", "arm"}
"""Words of this project's own that stay in public names."""
OF_THE_PAPER_AND_THE_FIELD = {
    "actor", "extractor", "experience", "entry", "episode", "turn", "sequence", "group", "guided", "free", "role",
    "stage", "round", "metric", "recipe", "mechanism", "world", "environment", "credit", "use",
}  # fmt: skip


def test_it_is_short_and_each_word_is_there_once_with_a_sentence_or_a_few() -> None:
    assert len(PAGE.split()) <= 800
    assert len(DEFINED) == len(re.findall(r"^- ", PAGE, re.MULTILINE)) and len(TERMS) >= len(DEFINED)
    for terms, meaning in DEFINED:
        assert 1 <= len(re.findall(r"[.:](?:\s|$)", meaning)) <= 4, terms


def test_it_has_every_word_that_stays() -> None:
    roles = {"actor", "extractor"}
    assert roles == (KEPT | OF_THE_PAPER_AND_THE_FIELD) - TERMS
    (role,) = [meaning for terms, meaning in DEFINED if terms == "Role"]
    assert all(f"`{name}`" in role for name in roles)


def test_a_reader_finds_it() -> None:
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(glossary.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "glossary.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
