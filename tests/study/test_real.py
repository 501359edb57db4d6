"""The study that ships for looking at the machinery, with real models: two arms, two seeds, two rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crl.audit.verify import verify
from crl.lab.study.config import load_study
from crl.report.views import query
from tests.tiny_run import ROOT, crl, digests

pytestmark = pytest.mark.slow

STUDY = "conf/study/tiny.yaml"


def test_a_study_of_real_runs(tmp_path: Path) -> None:
    runs, study = tmp_path / "runs", load_study(ROOT / STUDY)
    # Begun with one arm and seed only; the whole study then finds that run finished.
    crl(runs, "compare", STUDY, "--jobs", "2", "--arms", "baseline", "--seeds", "101")
    first = runs / study.name / study.run_name("baseline", 101)
    before = digests(first)
    done = crl(runs, "compare", STUDY, "--jobs", "2")
    assert "4 runs, 1 of them finished" in done.stdout and digests(first) == before
    found = json.loads((runs / study.name / "study.json").read_text(encoding="utf-8"))
    for arm in found["arms"]:
        assert arm["finished"] == study.seeds and set(arm["episodes"].values()) == {32}
        for seed in study.seeds:
            path = runs / study.name / study.run_name(arm["arm"], seed)
            assert verify(path) == []
            sql = "SELECT condition, avg(success::int) FROM evaluations WHERE round = 2 GROUP BY condition"
            rates = dict(query(path, sql)[1])
            assert arm["without_bank"]["final"][str(seed)] == rates["without_bank"]
            if arm["arm"] == "baseline":
                assert set(rates) == {"without_bank"} and arm["with_bank"] is None
            else:
                assert arm["with_bank"]["final"][str(seed)] == rates.get("with_bank", rates["without_bank"])
