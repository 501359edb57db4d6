"""`crl fork`: what it says, what it refuses, and where a person sees which run comes from which."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from tests.recipe_runs import requires
from tests.tiny_run import crl_here
from tests.unit.recipes.branched import digests, finished, play


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    root = tmp_path_factory.mktemp("runs")
    finished(root, 2, method__evaluation__every=0)
    return root


@pytest.fixture
def own(runs: Path, tmp_path: Path) -> Path:
    """The same, to be changed by a test."""
    return shutil.copytree(runs, tmp_path / "runs")


@pytest.mark.slow
def test_the_run_it_makes_is_gone_on_with_and_the_tree_shows_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr("crl.preflight.check_ready", lambda made, path, rounds: checked.append(made.name))
    said = crl_here(own, "fork", "played", "--round", "1", "--name", "milder",
                    "--set", "method.recipe.actor_objective.epsilon=0.3", "--keep-rollouts").stdout  # fmt: skip
    assert "recipe.actor_objective.epsilon 0.2 → 0.3" in said and "plan, collect of round 2" in said
    assert "crl resume" in said and "--rounds" not in said
    assert "unfinished: round 2, distill" in crl_here(own, "status", "milder").stdout
    play(RunDirectory.open(own / "milder"), 2)
    crl_here(own, "fork", "milder", "--round", "2", "--name", "merges", "--set", "method.recipe.merge.every=1")
    crl_here(own, "fork", "played", "--round", "0", "--name", "same")
    assert checked == ["milder", "merges"], "held against this machine where the method is another one"
    tree = """forks:
  played
  ├─ milder, from round 1, with its rollouts of the next: recipe.actor_objective.epsilon 0.2 → 0.3
  │  └─ merges, from round 2: recipe.merge.every 2 → 1  ← this run
  └─ same, from round 0: nothing changed
"""
    assert tree in crl_here(own, "status", "merges").stdout
    shutil.rmtree(own / "milder")
    crl_here(own, "report", "merges")
    page = (own / "merges" / "report.html").read_text(encoding="utf-8")
    assert "milder, from round 1 or later (not here any more)" in page and "← this run" in page
    assert "intact" in crl_here(own, "verify", "merges").stdout


def test_a_run_without_forks_shows_no_tree(runs: Path) -> None:
    assert "forks" not in crl_here(runs, "status", "played").stdout


@pytest.mark.parametrize(
    ("words", "found", "expected"),
    [
        (["--round", "3", "--name", "child"], "has no round 3", "a finished round: 0 to 2"),
        (["--round", "1", "--name", "played"], "played already", "a name that no run has"),
        (["--round", "1", "--name", "Child!"], "not a valid experiment", "name: String should match"),
        (["--round", "1", "--name", "child", "--set", "runtime.shards=2"], "not part of the method",
         "keys of `method`"),
        (["--round", "1", "--name", "child", "--set", "method.sed=2"], "method.sed: unknown key", "mean 'seed'"),
        (["--round", "1", "--name", "child", "--recipe", "basline"], "basline", "baseline"),
        pytest.param(
            ["--round", "1", "--name", "child", "--recipe", "erl"], "needs a role 'reflector'", "actor",
            marks=requires("erl"),
        ),
        (["--round", "1", "--name", "child", "--keep-rollouts", "--set", "method.seed=2"], "may depend on method.seed",
         "changes of what follows the rollouts"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(runs: Path, words: list[str], found: str, expected: str) -> None:
    said = crl_here(runs, "fork", "played", *words, code=2).stderr
    assert found in said and expected in said
    assert [path.name for path in runs.iterdir()] == ["played"]


def test_a_round_that_is_not_finished_is_refused(own: Path) -> None:
    crl_here(own, "redo", "played", "--from", "2/credit", "--yes")
    said = crl_here(own, "fork", "played", "--round", "2", "--name", "child", code=2).stderr
    assert "round 2 of" in said and "is not finished: credit is missing" in said and "crl resume" in said
    crl_here(own, "fork", "played", "--round", "1", "--name", "child", "--keep-rollouts")
    assert {"2/plan", "2/collect"} < digests(RunDirectory.open(own / "child")).keys()


def test_a_damaged_parent_is_refused(own: Path) -> None:
    damaged = own / "played/rounds/0001/collect/turns.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    said = crl_here(own, "fork", "played", "--round", "2", "--name", "child", code=4).stderr
    assert "rounds/0001/collect/turns.parquet" in said and "crl redo" in said
    assert not (own / "child").exists()


def test_what_was_inherited_is_taken_back_in_the_parent_only(own: Path) -> None:
    crl_here(own, "fork", "played", "--round", "1", "--name", "child")
    said = crl_here(own, "redo", "child", "--from", "1/credit", code=2).stderr
    assert "0001/credit was made by played" in said and "take it back in played" in said
    assert "damaged" not in [path.name for path in (own / "child").iterdir()]


def test_the_parents_runtime_goes_along(own: Path) -> None:
    from crl.config import Runtime
    from crl.engine.targets import last_runtime, remember_target

    runtime = Runtime(shards=3, save_total_limit=9)
    remember_target(Journal(own / "played"), 1, 2, purpose=None, token=1, runtime=runtime)
    crl_here(own, "fork", "played", "--round", "1", "--name", "child")
    assert last_runtime(own / "child") == runtime
