"""Experiential RL with real engines: killed in the middle of a round, it resumes to the digests of a run left alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from crl.report.views import query
from tests.processes import wait_until
from tests.tiny_run import ROOT, command, crl, digests, environment, leftovers

EXPERIMENT = ("conf/erl_tiny.yaml", "--no-prefect", "--set", "method.families.0.evaluation_seeds.count=2")
ROUNDS = "2"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    runs = tmp_path_factory.mktemp("whole")
    crl(runs, "train", *EXPERIMENT, "--rounds", ROUNDS)
    return runs / "erl-tiny"


@pytest.mark.parametrize("after", ["collect", "reflect", "credit"])
def test_killed_after_a_stage_it_resumes_to_the_same_digests(whole: Path, tmp_path: Path, after: str) -> None:
    begun = subprocess.Popen(
        command("train", *EXPERIMENT, "--rounds", ROUNDS), cwd=ROOT, env=environment(tmp_path),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    run = tmp_path / "erl-tiny"
    wait_until(lambda: (run / f"rounds/0001/{after}").is_dir() or begun.poll() is not None, f"{after} is complete")
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    assert not (run / f"rounds/{int(ROUNDS):04d}/evaluate").exists(), "there is something left to do"
    crl(tmp_path, "resume", "erl-tiny")
    assert digests(run) == digests(whole) and leftovers(run) == []
    assert "intact" in crl(tmp_path, "verify", "erl-tiny").stdout


def test_the_run_trains_every_stream_and_shows_it(whole: Path) -> None:
    names, [row] = query(
        whole,
        "SELECT max(updates) AS updates, (SELECT count(*) FROM reflections) AS reflections,"
        " (SELECT list(DISTINCT role ORDER BY role) FROM samples) AS roles,"
        " (SELECT count(*) FROM metrics WHERE name = 'reference_kl' AND value > 0) AS penalized FROM weights",
    )  # fmt: skip
    found = dict(zip(names, row, strict=True))
    assert found["updates"] == 2 and int(str(found["reflections"])) > 0
    assert found["roles"] == ["actor", "reflector"] and found["penalized"] == 1, "in round 1 the weights are the base's"
    said = crl(whole.parent, "status", "erl-tiny").stdout
    assert "attempts and reflections" in said and "tried again" in said
    crl(whole.parent, "report", "erl-tiny")
    page = (whole / "report.html").read_text()
    assert "reward gained by trying again" in page and "reflections and memory" in page
