"""kill -9 where outputs about an episode are compared by their games: resumed, the run is the undisturbed one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.records import TRIAL, Trial
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.faults.test_kills import SEED
from tests.tiny_run import NAME, crl_here, digests, leftovers, train

ROUNDS = 2
COMPARED: Mapping[str, Any] = {
    "method__recipe__distill__outputs": 2,
    "method__recipe__trial": "{layouts: 2, threshold: 0.3, reuse_rounds: 0}",
}

pytestmark = pytest.mark.slow


def test_killed_before_in_and_after_its_trials(tmp_path: Path) -> None:
    crl_here(tmp_path / "reference", *train(ROUNDS, **COMPARED))
    reference = tmp_path / "reference" / NAME
    run = RunDirectory.open(reference)
    assert any(run.read(number, TRIAL, Trial).num_rows for number in (1, 2)), "some outputs were tried"
    with killed_run(tmp_path / "runs", reference, ROUNDS, SEED + 7, **COMPARED) as killed:
        for key in ("0001/trial", "0001/consolidate", "0002/trial", "0002/credit"):
            if not killed.alive:
                killed.start(shards=killed.random.choice([1, 2]))
            if not killed.kill_in(key, whom=killed.random.choice(["flow", "engine", "both"])):
                break
        killed.finish()
        assert len(killed.kills) >= 2
        assert digests(killed.path) == killed.expected
        assert leftovers(killed.path) == []
        directory = RunDirectory.open(killed.path)
        assert problems_of(directory, recipe_of(directory.method)) == []
        killed.check_journal()
