"""`crl fork` with real engines: weights and optimizer state of a round go on to the parent's digests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import recipe_runs
from tests.recipe_runs import OTHERS, tiny_name
from tests.tiny_run import ROUNDS, digests, train
from tests.tiny_run import crl_here as crl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_charts")]


def test_forked_at_each_round_it_has_the_parents_digests(unpruned: Path, tmp_path: Path) -> None:
    parent = Path(shutil.copytree(unpruned, tmp_path / unpruned.name))
    for number in range(ROUNDS):
        name = f"child{number}"
        crl(tmp_path, "fork", parent.name, "--round", str(number), "--name", name)
        crl(tmp_path, "resume", name, "--rounds", str(ROUNDS - number))
        assert digests(tmp_path / name) == digests(parent)
        assert "intact" in crl(tmp_path, "verify", name).stdout
    assert "intact" in crl(tmp_path, "verify", parent.name).stdout


def test_a_checkpoint_that_retention_deleted_is_named(copied: Path) -> None:
    said = crl(copied.parent, "fork", "tiny", "--round", "0", "--name", "child", code=2).stderr
    assert "was pruned: rounds/0000/warm_start_actor/checkpoint" in said and "keep_every" in said


@pytest.mark.parametrize("recipe", OTHERS)
def test_other_recipes_forked_at_each_round_have_the_parents_digests(
    run_of: Callable[[str], Path], tmp_path: Path, recipe: str
) -> None:
    parent = Path(shutil.copytree(run_of(recipe), tmp_path / tiny_name(recipe)))
    for number in range(recipe_runs.ROUNDS):
        name = f"child{number}"
        crl(tmp_path, "fork", parent.name, "--round", str(number), "--name", name)
        crl(tmp_path, "resume", name, "--rounds", str(recipe_runs.ROUNDS - number))
        assert digests(tmp_path / name) == digests(parent)
        assert "intact" in crl(tmp_path, "verify", name).stdout
    assert "intact" in crl(tmp_path, "verify", parent.name).stdout


def test_overlapped_rounds_forked_at_each_round_have_the_parents_digests(tmp_path: Path) -> None:
    crl(tmp_path, *train(3, method__overlap=True, runtime__save_total_limit=9))
    for number in (1, 2):
        name = f"child{number}"
        crl(tmp_path, "fork", "tiny", "--round", str(number), "--name", name)
        crl(tmp_path, "resume", name, "--rounds", str(3 - number))
        assert digests(tmp_path / name) == digests(tmp_path / "tiny")


def test_what_follows_kept_rollouts_is_trained_by_the_changed_method(copied: Path) -> None:
    runs = copied.parent
    crl(runs, "fork", "tiny", "--round", "1", "--name", "faster", "--keep-rollouts",
        "--set", "method.roles.actor.optimizer.learning_rate=0.01")  # fmt: skip
    crl(runs, "resume", "faster")
    before, after = digests(copied), digests(runs / "faster")
    assert all(after[f"0002/{stage}"] == before[f"0002/{stage}"] for stage in ("plan", "collect"))
    assert after["0002/update_actor"] != before["0002/update_actor"]
    assert "faster, from round 1, with its rollouts of the next" in crl(runs, "status", "faster").stdout
    assert "intact" in crl(runs, "verify", "faster").stdout
