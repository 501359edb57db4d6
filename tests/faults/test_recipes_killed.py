"""Recipes beside Complementary RL with real engines: killed in the middle of a round, each resumes to the digests of a
run left alone; what it trained is in the record, and status and report show it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from crl.report.views import query
from tests.processes import wait_until
from tests.tiny_run import ROOT, command, crl, digests, environment, leftovers

ROUNDS = "2"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """An experiment, and where it is killed."""

    name: str
    kills: tuple[str, ...]
    """Stages of round 1 after each of which it is killed."""

    @property
    def arguments(self) -> tuple[str, ...]:
        few = "method.families.0.evaluation_seeds.count=2"
        return f"conf/{self.name.replace('-', '_')}.yaml", "--no-prefect", "--rounds", ROUNDS, "--set", few


ERL = Case("erl-tiny", ("collect", "reflect", "credit"))
REPLAY = Case("importance-replay-tiny", ("credit", "update_actor", "probe_after"))
CASES = (ERL, REPLAY)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every case that nobody disturbed."""
    root = tmp_path_factory.mktemp("whole")
    for case in CASES:
        crl(root, "train", *case.arguments)
    return root


@pytest.mark.parametrize(
    ("case", "after"), [pytest.param(case, after, id=f"{case.name}-{after}") for case in CASES for after in case.kills]
)
def test_killed_after_a_stage_it_resumes_to_the_same_digests(
    runs: Path, tmp_path: Path, case: Case, after: str
) -> None:
    begun = subprocess.Popen(
        command("train", *case.arguments), cwd=ROOT, env=environment(tmp_path),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    run = tmp_path / case.name
    wait_until(lambda: (run / f"rounds/0001/{after}").is_dir() or begun.poll() is not None, f"{after} is complete")
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    assert not (run / f"rounds/{int(ROUNDS):04d}/evaluate").exists(), "there is something left to do"
    crl(tmp_path, "resume", case.name)
    assert digests(run) == digests(runs / case.name) and leftovers(run) == []
    assert "intact" in crl(tmp_path, "verify", case.name).stdout


def shown(runs: Path, case: Case, sql: str) -> tuple[dict[str, object], str, str]:
    """The one row of a query, what `crl status` says, and the page of the report."""
    names, [row] = query(runs / case.name, sql)
    said = crl(runs, "status", case.name).stdout
    crl(runs, "report", case.name)
    return dict(zip(names, row, strict=True)), said, (runs / case.name / "report.html").read_text()


def test_erl_trains_every_stream_and_shows_it(runs: Path) -> None:
    found, said, page = shown(
        runs, ERL,
        "SELECT max(updates) AS updates, (SELECT count(*) FROM reflections) AS reflections,"
        " (SELECT list(DISTINCT role ORDER BY role) FROM samples) AS roles,"
        " (SELECT count(*) FROM metrics WHERE name = 'reference_kl' AND value > 0) AS penalized FROM weights",
    )  # fmt: skip
    assert found["updates"] == 2 and int(str(found["reflections"])) > 0
    assert found["roles"] == ["actor", "reflector"] and found["penalized"] == 1, "in round 1 the weights are the base's"
    assert "attempts and reflections" in said and "tried again" in said
    assert "reward gained by trying again" in page and "reflections and memory" in page


def test_replay_draws_old_samples_measures_its_updates_and_shows_it(runs: Path) -> None:
    found, said, page = shown(
        runs, REPLAY,
        "SELECT (SELECT count(*) FROM replay_draws WHERE age > 0) AS old,"
        " (SELECT count(DISTINCT weights_digest) FROM generations WHERE starts_with(stage, 'probe_')) AS weights,"
        " (SELECT sum(pairs) FROM improvements) AS pairs, (SELECT max(steps) FROM extractor_tensors) AS steps,"
        " (SELECT count(*) FROM replay WHERE status = 'held' AND round = 2) AS held,"
        " (SELECT value FROM metrics WHERE stage = 'update_actor' AND name = 'ratio_max' AND round = 2) AS ratio",
    )  # fmt: skip
    assert int(str(found["old"])) > 0 and float(str(found["ratio"])) > 1, "off-policy by what was stored"
    assert (found["weights"], found["pairs"], found["held"]) == (3, 24, 24) and int(str(found["steps"])) >= 8
    assert "replay and probes" in said and "worth of the samples" in page
