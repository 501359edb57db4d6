"""What the README shows, end to end: the tiny experiment with models, engine and Prefect, from the shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_train_with_prefect_and_look_at_what_was_made(tmp_path: Path) -> None:
    environment = {
        **os.environ, "CRL_RUNS": str(tmp_path / "runs"), "PREFECT_HOME": str(tmp_path / "prefect"),
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def crl(*arguments: str) -> str:
        command = [sys.executable, "-m", "crl", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    trained = crl("train", "conf/tiny.yaml", "--rounds", "2")
    assert "round 2: plan, collect, distill" in trained and "what to type" not in trained
    assert [line for line in trained.splitlines() if line.startswith("2 ")], "the table has a row for round 2"
    assert "intact" in crl("verify", "tiny")
    assert "complete: every requested round is done" in crl("status", "tiny")
    counts = json.loads(
        crl("sql", "tiny", "SELECT count(*) AS episodes, count(DISTINCT round) AS rounds FROM episodes "
            "WHERE stage = 'collect'", "--format", "json")
    )  # fmt: skip
    assert counts == {"episodes": 32, "rounds": 2}
    entries = crl("sql", "tiny", "SELECT DISTINCT entry_id FROM lineage", "--format", "csv").split()[1:]
    if entries:
        assert "written by extractor rounds/" in crl("bank", "why", "tiny", entries[0])
    again = crl("resume", "tiny")
    assert "nothing to do" in again
