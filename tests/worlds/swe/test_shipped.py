"""The bug-fix tasks that ship: each fails before its reference fix and passes after it, and nothing gives it away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from crl.worlds.swe.library import DATA, Library, libraries
from crl.worlds.swe.repository import write_repository
from crl.worlds.swe.shipped import Kind, Level, Task, shipped_tasks, tasks
from data.swe.mutations.trials import run_trials
from tests.marks import sampled

ROOT = Path(__file__).parents[3]
NAMES = sorted(path.name for path in (DATA / "libraries").iterdir())
CONCURRENT = ("recency", "throttle")
ROWS = """
import json
from crl.worlds.swe.shipped import shipped_tasks
print(json.dumps({name: task.row().model_dump(mode="json") for name, task in shipped_tasks().items()}))
"""


def by_library(name: str) -> list[Task]:
    return [task for task in shipped_tasks().values() if task.library.name == name]


def git(place: Path, *arguments: str) -> str:
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, env=quiet, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_enough_of_each_sort() -> None:
    assert len(shipped_tasks()) >= 40
    assert Counter(task.level for task in shipped_tasks().values()).keys() == set(get_args(Level))
    assert Counter(task.kind for task in shipped_tasks().values()).keys() == set(get_args(Kind))
    assert min(Counter(task.level for task in tasks("evaluation")).values()) >= 3
    assert min(Counter(task.library.name for task in shipped_tasks().values()).values()) >= 3
    assert len(NAMES) >= 12


def test_no_library_is_in_both_splits() -> None:
    train, evaluation = tasks("train"), tasks("evaluation")
    assert len(train) + len(evaluation) == len(shipped_tasks())
    assert len(evaluation) >= 12
    assert not {task.library.name for task in train} & {task.library.name for task in evaluation}


def test_a_level_is_asked_for_by_name() -> None:
    hard = tasks("evaluation", "hard")
    assert "throttle-window-races" in {task.instance_id for task in hard} and {task.level for task in hard} == {"hard"}
    assert sum(len(tasks(split, level)) for split in ("train", "evaluation") for level in get_args(Level)) == len(
        shipped_tasks()
    )


@pytest.mark.parametrize("name", sampled(NAMES, 10))
def test_every_task_fails_before_and_passes_after_its_fix(name: str) -> None:
    mine = by_library(name)
    correct, *broken = run_trials(libraries()[name], [{}, *(task.broken for task in mine)])
    assert correct.ended is None
    assert correct.failed == ()
    for task, trial in zip(mine, broken, strict=True):
        assert trial.ended is None, task.instance_id
        assert set(trial.failed) == set(task.fail_to_pass), task.instance_id
        assert {*task.fail_to_pass, *task.pass_to_pass} == set(task.library.tests)
        assert all(test.partition("::")[0] in task.library.hidden_tests for test in task.fail_to_pass)


@pytest.mark.parametrize("task", shipped_tasks().values(), ids=str)
def test_statements_give_nothing_away(task: Task) -> None:
    row = task.row()
    added = [line[1:].strip() for line in row.patch.splitlines() if line.startswith("+") and line[:3] != "+++"]
    assert not [line for line in added if len(line) > 8 and line in task.statement]
    assert not [path for path in task.broken if path in task.statement]
    assert not [test for test in row.tests if test.partition("::")[2] in task.statement]
    assert len(task.statement) > 80
    titles = Counter(other.statement.splitlines()[0] for other in shipped_tasks().values())
    assert titles[task.statement.splitlines()[0]] == 1


def test_a_repository_has_a_commit_per_task_and_no_judging_tests(tmp_path: Path) -> None:
    every = {name: task.files for name, task in shipped_tasks().items()}
    commits = write_repository(every, tmp_path / "all.git")
    assert git(tmp_path / "all.git", "fsck", "--strict", "--full", "--no-dangling") == ""
    assert len(set(commits.values())) == len(every) and commits.keys() == every.keys()
    for task in list(shipped_tasks().values())[::9]:
        named = task.row().base_commit
        assert git(tmp_path / "all.git", "rev-parse", named).strip() == commits[task.instance_id]
        assert git(tmp_path / "all.git", "rev-list", named).split() == [commits[task.instance_id]], "no history"
        listed = git(tmp_path / "all.git", "ls-tree", "-r", "--name-only", named).splitlines()
        assert listed == sorted(task.files)
        assert not set(listed) & set(task.library.hidden_tests)


def test_the_same_files_give_the_same_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes them, and whenever; and so does writing over them."""
    name, task = next(iter(shipped_tasks().items()))
    others = {"more": {"a ü.txt": "ü\n", "folder/deep/b.py": ""}, name: task.files}
    first = write_repository({name: task.files}, tmp_path / "one.git")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "someone")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    second = write_repository(others, tmp_path / "two.git")
    assert second[name] == first[name] and write_repository(others, tmp_path / "two.git") == second
    assert git(tmp_path / "two.git", "show", "more:a ü.txt") == "ü\n"
    assert git(tmp_path / "two.git", "log", "--format=%an %at %cn %ct", name) == (
        "complementary-rl 1700000000 complementary-rl 1700000000\n"
    )


def test_patches_apply_with_git(tmp_path: Path) -> None:
    for task in list(shipped_tasks().values())[::12]:
        work = checkout(task, tmp_path / task.instance_id)
        for name, patch in (("fix", task.row().patch), ("tests", task.row().test_patch)):
            (tmp_path / name).write_text(patch)
            git(work, "apply", "--check", str(tmp_path / name))
            git(work, "apply", str(tmp_path / name))
        assert read(work) == {**task.library.files, **task.library.hidden_tests}


@pytest.mark.slow
def test_rows_are_equal_in_other_processes() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo"}
    other = subprocess.run(
        [sys.executable, "-c", ROWS], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    here = {name: task.row().model_dump(mode="json") for name, task in shipped_tasks().items()}
    assert json.loads(other.stdout) == here


def test_libraries_use_the_standard_library_alone() -> None:
    for library in libraries().values():
        for path in library.sources:
            lines = [line.split()[1].partition(".")[0] for line in library.files[path].splitlines() if imports(line)]
            assert set(lines) <= {*sys.stdlib_module_names, library.name}, path


def imports(line: str) -> bool:
    return line.lstrip().startswith(("import ", "from "))


def checkout(task: Task, place: Path) -> Path:
    repository = place.parent / "one.git"
    write_repository({task.instance_id: task.files}, repository)
    git(place.parent, "clone", "--quiet", "--branch", task.instance_id, str(repository), str(place))
    return place


def read(place: Path) -> dict[str, str]:
    files = [path for path in place.rglob("*") if path.is_file() and ".git" not in path.relative_to(place).parts]
    return {path.relative_to(place).as_posix(): path.read_text() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("task", shipped_tasks().values(), ids=str)
def test_pytest_agrees(task: Task, tmp_path: Path) -> None:
    """The whole way, as a grader goes it: clone, apply with git, run pytest."""
    work, row = checkout(task, tmp_path / "work"), task.row()
    assert outcomes(work)[1] == set()
    apply(work, tmp_path, row.test_patch)
    passed, failed = outcomes(work)
    assert (passed, failed) == (set(row.pass_to_pass), set(row.fail_to_pass))
    apply(work, tmp_path, row.patch)
    assert outcomes(work) == (set(row.tests), set())


def apply(work: Path, folder: Path, patch: str) -> None:
    (folder / "patch").write_text(patch)
    git(work, "apply", str(folder / "patch"))


def outcomes(work: Path) -> tuple[set[str], set[str]]:
    """Names of the tests that passed and that failed."""
    shutil.rmtree(work / ".pytest_cache", ignore_errors=True)
    command = [sys.executable, "-B", "-m", "pytest", "-rA", "-q", "-p", "no:cacheprovider", "--tb=no", "--no-header"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    lines = [line.split(" - ")[0].split(" ", 1) for line in done.stdout.splitlines()]
    found = {kind: {rest[0] for word, *rest in lines if word == kind} for kind in ("PASSED", "FAILED")}
    return found["PASSED"], found["FAILED"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONCURRENT)
def test_tests_of_threads_are_not_flaky(name: str) -> None:
    library: Library = libraries()[name]
    mine = [task for task in by_library(name) if task.kind == "concurrency"]
    assert mine
    trials = run_trials(library, [{}, *(each.broken for each in mine)], times=50)
    for trial, task in zip(trials, [None, *mine], strict=True):
        assert trial.ended is None
        assert set(trial.failed) == set(task.fail_to_pass if task else ())
