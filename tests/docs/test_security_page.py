"""docs/security.md is one page, and each of its claims names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")


def test_it_is_one_page() -> None:
    assert len(PAGE.split()) <= 800


def test_every_test_named_is_there_and_every_way_in_has_one() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) >= 12
    assert [each for each in named if not (ROOT / each).is_file()] == []
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    assert [line for line in rows if "tests/" not in line and not line.startswith("| who |")] == []


def test_the_settings_are_those_of_the_code() -> None:
    from flows.origin import LOOPBACK, VARIABLE

    assert f"`{VARIABLE}`" in PAGE and all(name in PAGE for name in LOOPBACK)
