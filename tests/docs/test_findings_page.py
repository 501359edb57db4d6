"""What docs/findings.md and docs/recipes.md say of studies stands on the page of research/ that the sentence names."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_commands import ROOT

INTERVAL = re.compile(r"[+−]?\d\.\d\d \[[+−]?\d\.\d\d, [+−]?\d\.\d\d\]")
SENTENCES = [
    (page, " ".join(text.split()))
    for page in ("findings", "recipes")
    for text in re.split(r"\n(?:\d+\. |- |\n)", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    if INTERVAL.search(" ".join(text.split()))
]


def test_there_are_sentences() -> None:
    assert len(SENTENCES) >= 14


@pytest.mark.parametrize(("page", "sentence"), SENTENCES)
def test_every_interval_stands_on_the_page_behind_it(page: str, sentence: str) -> None:
    (named,) = re.findall(r"`research/(\w+\.md)`", sentence)
    told = " ".join((ROOT / "research" / named).read_text(encoding="utf-8").split())
    for interval in INTERVAL.findall(sentence):
        assert interval in told, f"{page}: {interval} is not in research/{named}"
