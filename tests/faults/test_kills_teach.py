"""kill -9 where a teacher reads episodes and shares are measured: resumed, the run is the one that nobody disturbed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crl.records import Metric, TeacherLogprobs, rows_of
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.faults.test_kills import SEED
from tests.tiny_run import NAME, crl_here, train

ROUNDS = 3
TAUGHT: Mapping[str, Any] = {
    "method__recipe__context_distillation": "{share: 0.3}",
    "method__recipe__self_distillation": "{episodes: all_wins, share: 0.2}",
    "method__recipe__suppress": "{min_uses: 2, decay: 0.8, withdraw: 0.0}",
}

pytestmark = pytest.mark.slow


def test_killed_before_in_and_after_teaching(tmp_path: Path) -> None:
    crl_here(tmp_path / "reference", *train(ROUNDS, **TAUGHT))
    reference = tmp_path / "reference" / NAME
    run = RunDirectory.open(reference)
    factors = []
    for number in (2, 3):
        assert any(row.teacher_logprobs for row in rows_of(TeacherLogprobs, run.read(number, "teach", TeacherLogprobs)))
        metrics = {row.name: row.value for row in rows_of(Metric, run.read(number, "update_actor", Metric))}
        factors.append(metrics["reverse_kl_factor"])
    assert 0.5 <= factors[1] / factors[0] <= 2.0, "it moves at most twofold a round"
    with killed_run(tmp_path / "runs", reference, ROUNDS, SEED + 9, **TAUGHT) as killed:
        killed.kill_in_each("0002/plan", "0002/teach", "0002/update_actor", "0003/teach", "0003/update_actor", least=3)
        killed.check_journal()
