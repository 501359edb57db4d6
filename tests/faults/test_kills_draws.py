"""Dynamic sampling: killed in further draws, on one engine and on shards, the record is that of the undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.records import Episode
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.faults.test_kills import SEED
from tests.tiny_run import NAME, crl_here, train

ROUNDS, DRAWS = 2, 3
CHANGES = {"method__rollout__dynamic_sampling": f"{{max_draws: {DRAWS}}}"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run."""
    runs = tmp_path_factory.mktemp("drawn")
    crl_here(runs, *train(ROUNDS, **CHANGES))
    return runs / NAME


def drawn(path: Path, number: int, draw: str) -> int:
    """Episodes of a draw."""
    return RunDirectory.open(path).read(number, draw, Episode).num_rows


def test_killed_in_further_draws(reference: Path, tmp_path: Path) -> None:
    assert drawn(reference, 1, "collect_2") > 0, "something is drawn again"
    with killed_run(tmp_path / "runs", reference, ROUNDS, SEED + 11, **CHANGES) as killed:
        killed.kill_in_each("0001/plan_2", "0001/collect_2", "0001/collect_3", "0002/plan_3", "0002/collect_2", least=2)


def test_the_record_is_whole_and_can_be_made_again(reference: Path) -> None:
    assert "intact" in crl_here(reference.parent, "verify", NAME).stdout
    said = crl_here(reference.parent, "stage", NAME, "1", "plan_2").stdout
    assert "equal" in said or "same" in said, said


def test_a_fork_may_draw_more_often_or_once(reference: Path) -> None:
    """What a round before drew is read, whatever the fork draws itself."""
    for name, setting in (("once", "null"), ("more", "{max_draws: 4}")):
        changed = ("--set", f"method.rollout.dynamic_sampling={setting}")
        crl_here(reference.parent, "fork", NAME, "--round", "1", "--name", name, *changed)
        crl_here(reference.parent, "resume", name, "--rounds", "1")
        run = RunDirectory.open(reference.parent / name)
        read = run.manifest(2, "plan").digested.inputs
        assert {"0001/plan", "0001/plan_2", "0001/plan_3"} <= read.keys()
        assert ("collect_2" in run.complete_stages(2)) == (name == "more")
        assert "intact" in crl_here(reference.parent, "verify", name).stdout
