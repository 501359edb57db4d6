"""docs/packages.md: its modules import what they are listed for, its tests exist, and a run without a package fails."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from crl.config.load import load_experiment
from crl.run.validations import Verdict, load_verdict
from tests import tiny_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")
NAMED = {
    "prefect", "torch", "transformers", "trl", "deepspeed", "duckdb", "pyarrow", "faiss", "great_expectations",
}  # fmt: skip
PROCESSES = {"command": "crl train", "engine": "crl.engine.worker", "validation": "crl.validation.process"}
"""What the command line of each kind of process has in it."""
TAKEN_AWAY = """
import builtins, os, sys
package, process = os.environ["TAKEN_AWAY"].split("@")
imported = builtins.__import__
def without(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if name.partition(".")[0] == package and importer.partition(".")[0] in ("crl", "flows", "tasks"):
        raise ModuleNotFoundError(f"No module named {name!r}: taken away from {importer}", name=name)
    return imported(name, globals, locals, fromlist, level)
if process in " ".join(sys.orig_argv):
    builtins.__import__ = without
"""
"""A sitecustomize: the package is not there for this project's code, in one kind of process. Other packages keep it."""
NONE = "no package"


def table() -> dict[str, list[str]]:
    """The cells of the page's table, by package."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")
    ]
    return {row[0]: row[1:] for row in rows[1:]}


WORK = table()
HELD = {
    "prefect": "flows/test_flows.py::test_a_transient_failure_is_retried_and_the_record_is_that_of_an_undisturbed_run",
    "torch": "unit/learn/test_trainer.py::test_log_probabilities_are_those_of_a_plain_forward_pass",
    "transformers": "unit/policies/test_session.py::test_stored_logprobs_are_those_of_teacher_forcing",
    "trl": "unit/learn/test_warm_start_training.py::test_it_learns_repeats_and_the_update_starts_from_it",
    "deepspeed": "unit/learn/test_trainer.py::test_plain_sgd_moves_by_the_learning_rate_times_the_clipped_gradient",
    "duckdb": "unit/checks/test_suites.py::test_a_breach_names_table_rule_and_row",
    "pyarrow": "unit/run/test_writer.py::test_bytes_depend_on_rows_only_not_on_how_a_table_was_put_together",
    "faiss": "unit/bank/test_index_exact.py::test_equal_to_exhaustive_search_with_many_ties",
    "great_expectations": "unit/validation/test_round.py::test_a_suite_weaker_than_the_compiled_rules_raises_the_alarm",
}
"""Tests that fail where a package is there and does something else."""
PLACES = [(package, process) for package, row in WORK.items() for process in row[1].split(", ")]


def imported_by(module: Path) -> set[str]:
    """Roots of everything that a module imports when it works; what is for types only does not count."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(module.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        waiting += ast.iter_child_nodes(node)
    return found


def test_the_page_is_about_the_named_packages() -> None:
    assert WORK.keys() == HELD.keys() == NAMED
    assert {process for _, process in PLACES} == PROCESSES.keys()


@pytest.mark.parametrize("package", sorted(NAMED))
def test_its_modules_import_it(package: str) -> None:
    modules = re.findall(r"`([^`]+\.py)`", WORK[package][2])
    assert modules
    for module in modules:
        assert package in imported_by(ROOT / module), f"{module} does not import {package}"


@pytest.mark.parametrize("package", sorted(NAMED))
def test_its_test_is_there(package: str) -> None:
    file, _, name = HELD[package].partition("::")
    tests = ast.walk(ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")))
    assert name in {node.name for node in tests if isinstance(node, ast.FunctionDef)}


def test_the_quickstart_goes_that_way() -> None:
    """What has a mechanism of its own is switched on in what `make train` runs."""
    made = load_experiment(ROOT / "conf/quickstart.yaml")
    recipe = made.method.recipe
    assert recipe.warm_start is not None, "TRL makes it"
    assert recipe.embedder() is not None and recipe.retrieval.index == "auto", "FAISS searches"
    assert set(made.method.trained()) == {"actor", "extractor"}, "DeepSpeed takes their steps"


def run_without(package: str, process: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(TAKEN_AWAY, encoding="utf-8")
    prefect = ("--prefect",) if package == "prefect" else ()
    rounds = 1 if package not in ("faiss", NONE) else 2  # a bank is searched once there is something in it
    extra = {
        "TAKEN_AWAY": f"{package}@{PROCESSES[process]}",
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
    }
    settings = {"method__recipe__retrieval__index": "auto", "runtime__validate_every": 1}
    return subprocess.run(
        tiny_run.command(*tiny_run.train(rounds, *prefect, **settings)),
        cwd=ROOT, env=tiny_run.environment(folder / "runs", extra), capture_output=True, text=True, check=False,
    )  # fmt: skip


def verdict(folder: Path) -> Verdict:
    found = load_verdict(folder / "runs" / tiny_run.NAME, 1)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("package", "process"), PLACES, ids=[f"{package}-{process}" for package, process in PLACES])
def test_a_run_fails_without_it(package: str, process: str, tmp_path: Path) -> None:
    done = run_without(package, process, tmp_path)
    said = done.stdout + done.stderr
    if process == "validation":  # beside the run: it is complete, and said not to be validated
        assert not done.returncode, said
        assert verdict(tmp_path).outcome == "not validated", said
        assert "round 1 was not validated" in said, said
    else:
        assert done.returncode, said
    assert f"No module named '{package}" in said, said
    assert re.search(r"taken away from (crl|flows|tasks)\b", said), said


@pytest.mark.slow
def test_the_same_run_ends_well_with_all_of_them(tmp_path: Path) -> None:
    done = run_without(NONE, "engine", tmp_path)
    assert not done.returncode, done.stderr
    assert verdict(tmp_path).outcome == "passed", verdict(tmp_path).summary()
