"""The table of how cost grows, in research/performance.md, is what the committed measurements come to; what the manual
says in short is what that page says."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RESEARCH, MANUAL = ((ROOT / name / "performance.md").read_text(encoding="utf-8") for name in ("research", "docs"))


def test_the_page_shows_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    measured = shutil.copy(ROOT / "docs/results/growth.parquet", tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["growth.py", "--of", "--out", str(measured), "--picture", str(tmp_path / "g.svg")]
    )
    importlib.import_module("growth").main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    page = RESEARCH.splitlines()
    assert len(rows) > 14 and [row for row in rows if row not in page] == []
    assert (tmp_path / "g.svg").read_text().startswith("<?xml")


def test_the_manual_says_the_same_in_short() -> None:
    page = RESEARCH.replace("–", " to ")
    measured = re.findall(r"\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\)", MANUAL)
    assert len(measured) >= 5 and [each for each in measured if each not in page] == []
    grown = [re.split(r" *\| *", line.strip("| ")) for line in MANUAL.splitlines() if "times as much per" in line]
    assert len(grown) == 5
    for what, first, last, cost in grown:
        factor, unit = re.findall(r"^([\d.]+) times as much per (\w+)", cost)[0]
        measured = rf"^\| {what} \| {last} \| .* per {UNITS[unit]} \| ([\d.]+) \|$"
        (row,) = re.findall(measured, RESEARCH, re.MULTILINE)
        assert f"{float(row):.{len(factor.partition('.')[2])}f}" == factor, (what, first, last)


UNITS = {"turn": "turn", "episode": "episode", "query": "query", "change": "operation"}
"""What a cost is of, on the manual's page and on that of the measurements."""
