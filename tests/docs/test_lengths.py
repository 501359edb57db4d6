"""How long the how-to pages of the manual may be, in words as `wc -w` counts them: a page is read in a few minutes."""

from __future__ import annotations

import pytest

from tests.docs.test_commands import ROOT

MOST = {
    "queries": 1200, "team_server": 700, "performance": 700, "skills": 400, "episodes": 400, "chat": 400,
    **dict.fromkeys(
        (
            "bank", "bank_from_chats", "bank_mcp", "checks", "damage", "engines", "evaluation", "export", "fork",
            "install", "long_runs", "notebook", "operations", "packages", "report", "scale", "security", "serve",
            "sql", "trackers", "troubleshooting",
        ),
        800,
    ),
}  # fmt: skip
ALL = 17_000
"""All of them together."""


@pytest.mark.parametrize("page", MOST)
def test_a_page_is_short(page: str) -> None:
    assert words(page) <= MOST[page]


def test_all_of_them_are() -> None:
    assert sum(map(words, MOST)) <= ALL


def words(page: str) -> int:
    return len((ROOT / f"docs/{page}.md").read_text(encoding="utf-8").split())
