"""The table of how cost grows, in docs/performance.md, is what the committed measurements come to."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


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
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) > 14 and [row for row in rows if row not in page] == []
    assert (tmp_path / "g.svg").read_text().startswith("<?xml")
