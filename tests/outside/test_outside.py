"""A package that the library does not know: installed, trained, killed, resumed, verified, asked, and in the form."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crl.report.views import query
from tests.processes import wait_until
from tests.tiny_run import ROOT, crl_here

PACKAGE = Path(__file__).parent
EXPERIMENT = PACKAGE / "experiment.yaml"
ROUNDS = 2
UNVALIDATED = ("--set", "runtime.validate_every=0")
"""Great Expectations takes longer than these rounds."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the package is installed into, as pip does it."""
    folder = tmp_path_factory.mktemp("outside")
    source = shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", folder / "site", source], check=True)
    return folder / "site"


def environment(site: Path, runs: Path) -> dict[str, str]:
    """Variables of a command that finds the package."""
    path = os.pathsep.join((str(site), str(ROOT)))
    return {**os.environ, "PYTHONPATH": path, "CRL_RUNS": str(runs), "OMP_NUM_THREADS": "1"}


def crl(site: Path, runs: Path, *arguments: str | Path) -> str:
    """Run `crl …` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "crl", *map(str, arguments)],
        cwd=ROOT, env=environment(site, runs), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def whole(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    runs = tmp_path_factory.mktemp("whole")
    crl(site, runs, "train", EXPERIMENT, "--rounds", str(ROUNDS), "--no-prefect", *UNVALIDATED)
    return runs / "outside"


def digests(run: Path) -> dict[str, str]:
    """Digest of every complete stage."""
    manifests = {str(path.parent.relative_to(run)): path for path in run.glob("rounds/*/[a-z]*/manifest.json")}
    return {stage: json.loads(path.read_text())["digest"] for stage, path in manifests.items()}


def asked(run: Path, sql: str) -> list[dict[str, object]]:
    names, found = query(run, sql)
    return [dict(zip(names, row, strict=True)) for row in found]


@pytest.mark.slow
def test_it_trains_both_roles_on_one_set_of_weights_with_two_objectives(whole: Path) -> None:
    [weights] = asked(whole, "SELECT count(DISTINCT role) AS sets, max(updates) AS updates FROM weights")
    assert weights == {"sets": 1, "updates": ROUNDS}, "the reviewer has no weights of its own"
    trained = asked(whole, "SELECT role, objective, count(*) AS n FROM samples WHERE round = 1 GROUP BY ALL ORDER BY 1")
    assert trained == [
        {"role": "actor", "objective": "grpo", "n": 16},
        {"role": "reviewer", "objective": "reinforce", "n": 16},
    ]
    [step] = asked(
        whole,
        "SELECT count(*) FILTER (name = 'stepped' AND value = 1) AS steps,"
        " count(*) FILTER (name = 'reinforce_tokens' AND value > 0) AS mixed FROM metrics WHERE stage = 'update_actor'",
    )  # fmt: skip
    assert step == {"steps": ROUNDS, "mixed": ROUNDS}, "one step per round, of both objectives"


@pytest.mark.slow
def test_free_text_is_played_for_rewards_that_are_not_binary(whole: Path) -> None:
    [played] = asked(
        whole,
        "SELECT count(DISTINCT reward) AS rewards, bool_and(reward > 0) AS positive,"
        " list_distinct(list(stream)) AS streams FROM episodes",
    )  # fmt: skip
    assert int(str(played["rewards"])) > 2 and played["positive"]
    assert played["streams"] == ["alone"]
    [turn] = asked(whole, "SELECT count(*) AS n FROM turns WHERE action = output AND valid")
    assert int(str(turn["n"])) > 0, "the environment is given what the actor wrote"


@pytest.mark.slow
def test_its_rows_are_checked_and_open_to_sql(site: Path, whole: Path) -> None:
    sql = (
        "SELECT reviews.round, count(*) AS n, bool_and(score BETWEEN 0 AND 1) AS fits "
        "FROM reviews JOIN episodes USING (episode_id) GROUP BY ALL ORDER BY 1"
    )
    said = crl(site, whole.parent, "sql", whole.name, sql, "--format", "json")  # which imports the package
    reviews = [json.loads(line) for line in said.splitlines()]
    assert [(row["n"], row["fits"]) for row in reviews] == [(16, True)] * ROUNDS
    manifest = json.loads((whole / "rounds/0001/review/manifest.json").read_text())
    checks = {each["table"]: each for each in manifest["provenance"]["checks"]}
    assert checks["reviews"]["passed"] and checks["reviews"]["rules"] > 4


@pytest.mark.slow
def test_its_section_is_in_the_report_of_its_runs(site: Path, whole: Path) -> None:
    said = crl(site, whole.parent, "status", whole.name)
    assert "reviews" in said and "seconds of reviewing" in said


@pytest.mark.slow
def test_killed_in_the_middle_it_resumes_to_the_same_digests(site: Path, whole: Path, tmp_path: Path) -> None:
    begun = subprocess.Popen(
        [sys.executable, "-m", "crl", "train", str(EXPERIMENT), "--rounds", str(ROUNDS), "--no-prefect", *UNVALIDATED],
        cwd=ROOT, env=environment(site, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    run = tmp_path / "outside"
    wait_until(lambda: (run / "rounds/0001/collect").is_dir() or begun.poll() is not None, "round 1 was played")
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    assert not (run / f"rounds/{ROUNDS:04d}/evaluate").exists(), "there is something left to do"
    crl(site, tmp_path, "resume", "outside")
    assert digests(run) == digests(whole)
    assert "intact" in crl(site, tmp_path, "verify", "outside")


@pytest.mark.slow
def test_where_the_package_is_missing_a_reader_says_so_and_not_that_the_record_is_damaged(whole: Path) -> None:
    done = crl_here(whole.parent, "status", "outside", code=2)
    assert "there is no environment 'lengths'" in done.stderr and "install the package" in done.stderr
    assert "damaged" not in done.stderr and "changed" not in done.stderr


def test_the_form_offers_its_recipe_and_its_world(site: Path, tmp_path: Path) -> None:
    code = (
        "import json; from crl.config import Experiment; from crl.config.keys import field_schema;"
        "from flows.parameters import _settings;"
        "print(json.dumps([_settings()['properties']['method.recipe.kind'], Experiment.model_json_schema()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(site, tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    recipe, schema = json.loads(done.stdout.splitlines()[-1])
    assert "reviewed" in recipe["enum"] and "complementary" in recipe["enum"]
    text = json.dumps(schema)
    assert "review_scale" in text and "Largest number of characters that may be wanted." in text


def test_without_the_package_the_experiment_is_refused_by_name(tmp_path: Path) -> None:
    done = crl_here(tmp_path / "runs", "train", EXPERIMENT, code=2)
    assert "there is no environment 'lengths'" in done.stderr and list(tmp_path.iterdir()) == []
