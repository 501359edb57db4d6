"""Every block of docs/notebook.md runs, in order, in one session on a run named tiny."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crl.config.load import load_experiment
from crl.run import experiment_file
from tests.unit.report.builder import build_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")


def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = build_run(tmp_path / "runs" / "tiny")
    experiment_file.create(run, load_experiment(ROOT / "conf" / "tiny.yaml"))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    session: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/notebook.md", "exec"), session)
    assert session["run"].rounds == [0, 1, 2]
    assert len(session["frame"]) == session["lost"].shape[0] == 1
    assert session["table"].loc[2].notna().any()
    assert session["story"].entry_id == session["entry_id"] == "e1"
    assert session["guided"] == [(2,)] and session["then"] == [(1,)]
    assert "there is no bank after round 99" in capsys.readouterr().out
