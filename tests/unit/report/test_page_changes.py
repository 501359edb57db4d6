"""How the page tells what a round did to the bank."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.report.diff import BankDiff, Change, Parent
from crl.report.page import render
from crl.report.summary import History
from tests.unit.report.builder import build_run
from tests.unit.report.test_page import Page


@pytest.mark.usefixtures("plain_charts")
def test_what_was_rejected_says_what_stays_and_what_was_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = (Parent("e1", "Look up."), Parent("e2", "Look down."))
    changes = (
        Change("merged", "e5", "room", "o1", "merge", None, "Look around.", None, (Parent("e4", "Go on."),), None),
        Change("rejected", "e9", "room", "o2", "merge", None, None, "Look.", parents, "text_too_long"),
        Change("rejected", "e3", "room", "o3", "update", "Wait.", "Wait.", "Look up.", (), "duplicate", "e_1"),
        Change(
            "rejected", "e3", "room", "o4", "update", "Wait here.", "Wait here.", "Wait here.", (), "unchanged", "e3"
        ),
    )
    monkeypatch.setattr(
        History, "diff", lambda self, number: BankDiff(2, False, 3, 3, changes) if number == 2 else None
    )
    text = render(build_run(tmp_path / "run"))
    assert re.findall(r'class="text old">([^<]*)<', text) == ["Go on."], "only what is gone is struck through"
    told = Page(text).text
    assert "stays: Look up.stays: Look down.wanted: Look. merge rejected: text too long e9" in told
    assert "stays: Wait.wanted: Look up. update rejected: duplicate of e_1 e3" in told
    assert "wanted: Wait here. update rejected: unchanged e3" in told and told.count("Wait here.") == 1, (
        "it is told once"
    )
