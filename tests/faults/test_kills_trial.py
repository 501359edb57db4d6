"""kill -9 where notes are tried and suppressed: resumed, the run is the one that was never disturbed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crl.records import TRIAL, Trial
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.faults.test_kills import SEED
from tests.tiny_run import NAME, crl_here, train

ROUNDS = 2
TRIALS: Mapping[str, Any] = {
    "method__recipe__trial": "{layouts: 3, threshold: 0.3, screen: 2}",
    "method__recipe__suppress": "{min_uses: 2, standard_errors: 0.5}",
}

pytestmark = pytest.mark.slow


def test_killed_before_in_and_after_its_trials(tmp_path: Path) -> None:
    crl_here(tmp_path / "reference", *train(ROUNDS, **TRIALS))
    reference = tmp_path / "reference" / NAME
    run = RunDirectory.open(reference)
    assert any(run.read(number, TRIAL, Trial).num_rows for number in (1, 2)), "some note was tried"
    with killed_run(tmp_path / "runs", reference, ROUNDS, SEED + 5, **TRIALS) as killed:
        killed.kill_in_each("0001/trial", "0001/consolidate", "0002/plan", "0002/trial", "0002/credit", least=3)
        killed.check_journal()
