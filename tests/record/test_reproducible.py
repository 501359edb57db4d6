"""Equal seeds give equal digests of every stage, in whatever process and however the work is spread; others do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from crl.engine.driver import Driver
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.recipe_runs import OTHERS, tiny_name, train_tiny
from tests.tiny_run import NAME, ROUNDS, crl, cut_back, digests, experiment, leftovers, train


def test_the_digests_cover_everything_that_was_made(finished: Path) -> None:
    run = RunDirectory.open(finished)
    assert len(digests(finished)) == 24
    for role in ("actor", "extractor"):
        files = run.manifest(ROUNDS, f"update_{role}").digested.files
        deepspeed = [name for name in files if name.startswith("checkpoint/deepspeed/")]
        assert "checkpoint/model.safetensors" in files
        assert {"engine.json", "optimizer-rank00000.safetensors"} <= {Path(name).name for name in deepspeed}
        # The next round reads the weights and, through them, vouches for every byte of the optimizer's state.
        assert all(files[name].sha256 and files[name].bytes for name in deepspeed)
    shared = run.manifest(ROUNDS, "consolidate").digested.shared
    assert {name.split("/")[1] for name in shared} == {"segments", "embeddings"}


@pytest.mark.slow
def test_a_round_in_four_shards_is_that_of_one(finished: Path, copied: Path) -> None:
    """In another place and process as well, with Python's hashes seeded differently."""
    cut_back(copied, ROUNDS, "plan")
    assert len(digests(copied)) == 14
    crl(copied.parent, *train(1, runtime__shards=4), extra={"PYTHONHASHSEED": "12345"})
    assert digests(copied) == digests(finished)
    assert leftovers(copied) == []


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3, 4])
def test_a_whole_fresh_run_makes_the_same(finished: Path, tmp_path: Path, shards: int) -> None:
    crl(tmp_path / "runs", *train(ROUNDS, runtime__shards=shards), extra={"PYTHONHASHSEED": "0"})
    assert digests(tmp_path / "runs" / NAME) == digests(finished)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OTHERS)
def test_other_recipes_make_the_same_in_three_shards_as_a_flow(
    run_of: Callable[[str], Path], tmp_path: Path, recipe: str
) -> None:
    runs = tmp_path / "runs"
    crl(runs, *train_tiny(recipe, "--prefect"), "--set", "runtime.shards=3", extra={"PYTHONHASHSEED": "12345"})
    assert digests(runs / tiny_name(recipe)) == digests(run_of(recipe)) and leftovers(runs) == []


@pytest.mark.slow
def test_one_round_after_the_other_makes_the_same_as_both_at_once(finished: Path, tmp_path: Path) -> None:
    """A new process reads weights and optimizer from the record where the old one had them in memory."""
    for _ in range(ROUNDS):
        crl(tmp_path / "runs", *train(1))
    assert digests(tmp_path / "runs" / NAME) == digests(finished)


def contents(run: RunDirectory, round_number: int, stage: str) -> dict[str, str]:
    """SHA-256 of each file of a stage. (Digests also cover the method, which holds the seed.)"""
    return {name: file.sha256 for name, file in run.manifest(round_number, stage).digested.files.items()}


@pytest.mark.parametrize("seed", sampled([1, 2], 2))
def test_what_is_planned_follows_the_seed(finished: Path, tmp_path: Path, seed: int) -> None:
    other = RunDirectory.create_or_open(experiment(method__seed=seed), tmp_path)
    with Driver(other, experiment().runtime) as driver:
        driver.run_stage(0, "initialize")
        driver.run_stage(1, "plan")
    mine = RunDirectory.open(finished)
    assert contents(mine, 0, "initialize") == contents(other, 0, "initialize"), "it draws nothing"
    same = mine.method.seed == seed
    for place in ((0, "initialize"), (1, "plan")):
        assert (mine.manifest(*place).digest == other.manifest(*place).digest) is same
    assert (contents(mine, 1, "plan")["tasks.parquet"] == contents(other, 1, "plan")["tasks.parquet"]) is same


@pytest.mark.slow
def test_another_seed_makes_something_else_from_the_first_draw_on(finished: Path, tmp_path: Path) -> None:
    crl(tmp_path / "runs", *train(1, method__seed=2))
    mine, other = RunDirectory.open(finished), RunDirectory.open(tmp_path / "runs" / NAME)
    # Evaluations are left out: two models that can hardly speak may say equally nothing under any seed.
    drawn = {
        (0, "warm_start_actor"): ["episodes", "turns", "generations", "samples"],
        (0, "warm_start_extractor"): ["episodes", "turns", "generations", "samples"],
        (1, "plan"): ["tasks"],
        (1, "collect"): ["episodes", "turns", "generations"],
        (1, "distill"): ["generations", "distillations"],
        (1, "credit"): ["samples"],
    }
    for place, tables in drawn.items():
        ours, theirs = contents(mine, *place), contents(other, *place)
        assert not [table for table in tables if ours[f"{table}.parquet"] == theirs[f"{table}.parquet"]], place
    weights = "checkpoint/model.safetensors"
    for place in ((0, "warm_start_extractor"), (1, "update_actor")):
        assert contents(mine, *place)[weights] != contents(other, *place)[weights]


def test_the_environment_seeds_differ_between_groups_and_rounds(finished: Path) -> None:
    """Equal digests would be easy if nothing were drawn."""
    tasks = [pq.read_table(finished / f"rounds/{number:04d}/plan/tasks.parquet") for number in (1, 2)]
    seeds = [set(table.column("environment_seed").to_pylist()) for table in tasks]
    assert [len(each) for each in seeds] == [4, 4]
    assert not seeds[0] & seeds[1]
