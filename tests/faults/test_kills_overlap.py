"""kill -9 over both tracks of rounds that overlap: resumed, the run is the one whose tracks ran in turn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from tests.faults.killing import killed_run
from tests.faults.test_kills import KILLS, SEED
from tests.tiny_run import NAME, crl_here, digests, leftovers, train

ROUNDS = 3
OVERLAP: Mapping[str, Any] = {"method__overlap": True, "runtime__save_total_limit": 1}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run, its tracks in turn on one engine."""
    runs = tmp_path_factory.mktemp("in_turn")
    crl_here(runs, *train(ROUNDS, **OVERLAP, runtime__overlap_engines=1))
    return runs / NAME


def test_side_by_side_is_as_in_turn(in_turn: Path, tmp_path: Path) -> None:
    crl_here(tmp_path, *train(ROUNDS, **OVERLAP))
    run = RunDirectory.open(tmp_path / NAME)
    assert digests(run.path) == digests(in_turn)
    assert problems_of(run, recipe_of(run.method)) == []
    assert most_at_once(run.path) == 2


def test_killed_thirty_times_over_both_tracks(in_turn: Path, tmp_path: Path) -> None:
    with killed_run(tmp_path / "runs", in_turn, ROUNDS, SEED + 2, **OVERLAP) as run:
        of_rounds = [key for key in run.stages if not key.startswith("0000/")]
        targets = sorted(run.random.choices(of_rounds, k=KILLS + 6), key=of_rounds.index)
        for number, key in enumerate(targets):
            if not run.alive:
                run.start(prefect=number in (9, 21), shards=run.random.choice([1, 1, 2]))
            if not run.kill_in(key, whom=run.random.choice(["flow", "engine", "both"])):
                break
        run.finish()
        assert len(run.kills) >= KILLS, "some more are tried: a stage may be over before its moment comes"
        assert digests(run.path) == run.expected
        assert leftovers(run.path) == []
        directory = RunDirectory.open(run.path)
        assert problems_of(directory, recipe_of(directory.method)) == []
        run.check_journal()
        assert most_at_once(run.path) == 2


def most_at_once(run_path: Path) -> int:
    """Stages that ran side by side, by the journal."""
    now: set[tuple[int, str]] = set()
    most = 0
    for line in Journal(run_path).read():
        place = (line.get("round"), line.get("stage"))
        if line["event"] == "stage_started":
            now.add(place)
        elif re.match("stage_|attempt_", line["event"]):
            now = now - {place} if line["event"].startswith("stage_") else set()
        most = max(most, len(now))
    return most
