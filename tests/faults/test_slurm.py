"""`deploy/slurm/train.sbatch` with a made Slurm: a job ended in every way has the digests of one that is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tiny_run
from tests.faults.killing import marked
from tests.processes import kill
from tests.slurm import End, Slurm, address_here
from tests.unit.engine.harness import RECIPE

pytestmark = pytest.mark.slow

SCRIPT = tiny_run.ROOT / "deploy/slurm/train.sbatch"


@pytest.fixture
def slurm(copied: Path, tmp_path: Path) -> Iterator[Slurm]:
    """Submits in a folder where `runs` has the prepared run: its rounds were taken out, and nothing is made again."""
    tiny_run.cut_back(copied, 1, "plan")
    (tmp_path / "conf").symlink_to(tiny_run.ROOT / "conf")
    made = Slurm(tmp_path / "slurm", tiny_run.environment(copied.parent), tmp_path)
    yield made
    kill(marked(made.mark))


def complete(path: Path, number: int, stage: str) -> Callable[[], bool]:
    return lambda: (path / f"rounds/{number:04d}/{stage}").is_dir()


def test_a_job_that_is_ended_in_every_way_makes_the_rounds_that_were_asked_for(
    slurm: Slurm, copied: Path, finished: Path
) -> None:
    ends = [
        (lambda: True, End.machine_lost),  # before anything was begun
        (complete(copied, 1, "plan"), End.time_is_up),
        (complete(copied, 1, "distill"), End.preempted),
        (complete(copied, 2, "plan"), End.machine_lost),
    ]
    words = (str(tiny_run.CONFIG), str(tiny_run.ROUNDS), "--no-prefect", *tiny_run.options())
    code, said = slurm.sbatch(SCRIPT, *words, ends=ends)
    assert code == 0, said[-3000:]
    assert slurm.starts == 1 + len(ends)
    assert all(f"restarts: {number}" in said for number in range(1, slurm.starts))
    assert tiny_run.digests(copied) == tiny_run.digests(finished)
    assert not tiny_run.leftovers(copied)
    # Begun once more, by hand or by a scheduler that lost count, it has nothing to do.
    code, said = slurm.sbatch(SCRIPT, *words)
    assert code == 0 and "nothing to do" in said and tiny_run.digests(copied) == tiny_run.digests(finished)


def test_a_controller_that_does_not_answer_at_first_is_asked_again(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path / "slurm", os.environ, tmp_path)
    (tmp_path / "slurm/bin/crl").write_text("#!/bin/bash\n[[ -e begun ]] || { touch begun; sleep 60; }\n")
    for name in ("squeue", "scontrol"):
        command = tmp_path / "slurm/bin" / name
        failing = f"[[ -e asked-{name} ]] || {{ touch asked-{name}; exit 1; }}"
        command.write_text(command.read_text().replace("#!/bin/bash\n", f"#!/bin/bash\n{failing}\n"))
    code, said = slurm.sbatch(SCRIPT, "tiny", "1", ends=[((tmp_path / "begun").exists, End.time_is_up)])
    assert (code, slurm.starts) == (0, 2), said


def test_a_canceled_job_and_one_that_failed_do_not_begin_again(slurm: Slurm, copied: Path) -> None:
    words = (str(tiny_run.CONFIG), "1", "--no-prefect", *tiny_run.options())
    code, said = slurm.sbatch(SCRIPT, *words, ends=[(complete(copied, 1, "plan"), End.canceled)])
    assert code == 143 and slurm.starts == 1, said[-3000:]
    code, said = slurm.sbatch(SCRIPT, *words, "--set", "method.seed=7")
    assert code != 0 and slurm.starts == 1 and "What to do" in said


def test_three_machines_play_on_one_dask_cluster_with_the_digests_of_one(tmp_path: Path) -> None:
    """A scheduler, three workers and the run, on stages without models; ended and begun again in its second round."""
    pytest.importorskip("prefect_dask")
    if address_here().startswith("127."):
        pytest.skip("this machine has no address that others would reach it at")
    words = ("--set", f"method.recipe={{kind: '{RECIPE}'}}")
    one = tmp_path / "one" / tiny_run.NAME
    tiny_run.crl(one.parent, "train", tiny_run.CONFIG, "--rounds", "2", "--no-prefect", *words)
    path = tmp_path / "runs" / tiny_run.NAME
    (tmp_path / "conf").symlink_to(tiny_run.ROOT / "conf")
    slurm = Slurm(tmp_path / "slurm", tiny_run.environment(path.parent), tmp_path)
    try:
        ends = [(complete(path, 2, "draw"), End.time_is_up)]
        code, said = slurm.sbatch(
            SCRIPT, str(tiny_run.CONFIG), "2", *words, ends=ends, nodes="3", **{"gpus-per-node": "1"}
        )
    finally:
        kill(marked(slurm.mark))
    assert code == 0, said[-5000:]
    assert slurm.starts == 2 and said.count("Registered to") == 6, said[-5000:]
    assert tiny_run.digests(path) == tiny_run.digests(one)
    assert not tiny_run.leftovers(path)
