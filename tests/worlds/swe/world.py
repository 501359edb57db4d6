"""A small repository with a mistake in it, its fix in a later commit, and the row of SWE-Bench's format about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from crl.errors import BadInput
from crl.worlds.swe import SweConfig

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

MEAN = '''"""Sums and means."""


def total(numbers):
    """Their sum."""
    return sum(numbers)


def mean(numbers):
    """Their mean; 0 of none."""
    return total(numbers) / (len(numbers) + 1)
'''
FIXED = MEAN.replace("total(numbers) / (len(numbers) + 1)", "total(numbers) / len(numbers) if numbers else 0")
OLD_TEST = """from tally import total


def test_total():
    assert total([1, 2]) == 3
"""
NEW_TEST = """from tally import mean, total


def test_total():
    assert total([1, 2]) == 3


def test_mean():
    assert mean([1, 3]) == 2


def test_none():
    assert mean([]) == 0
"""
FAILING = ("tests/test_tally.py::test_mean", "tests/test_tally.py::test_none")


def git(folder, *arguments):
    name = ("-c", "user.name=someone", "-c", "user.email=someone@localhost", "-c", "init.defaultBranch=main")
    said = subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return said.stdout


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def make_repository(folder, base, fix, tests):
    """A repository of two commits; the base commit, and the diffs of a fix and of its tests."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    write(folder, base)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=first")
    commit = git(folder, "rev-parse", "HEAD").strip()
    diffs = []
    for files in (fix, tests):
        for name, text in files.items():
            if text is None:
                (folder / name).unlink()
            else:
                write(folder, {name: text})
        git(folder, "add", "--all")
        diffs.append(git(folder, "diff", "--cached", "--binary"))
        git(folder, "commit", "--quiet", "--allow-empty", "--message=SOLUTION")
    return commit, *diffs


def make_row(folder, name="tally-1", *, base=None, fix=None, tests=None, **columns):
    """A repository and its row, as a record."""
    base = {"tally.py": MEAN, "tests/test_tally.py": OLD_TEST, "README.md": "Tally.\n"} if base is None else base
    fix = {"tally.py": FIXED} if fix is None else fix
    tests = {"tests/test_tally.py": NEW_TEST} if tests is None else tests
    commit, patch, test_patch = make_repository(folder / "someone" / name, base, fix, tests)
    return {
        "instance_id": name, "repo": f"someone/{name}", "base_commit": commit, "patch": patch, "test_patch": test_patch,
        "problem_statement": f"The mean of [1, 3] is wrong in {name}.", "FAIL_TO_PASS": json.dumps(list(FAILING)),
        "PASS_TO_PASS": '["tests/test_tally.py::test_total"]', "version": "1.0", **columns,
    }  # fmt: skip


def make_rows(folder, records):
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return folder / "rows.jsonl"


def config_of(folder, records=None, **settings):
    """A config over rows in a folder: one row for training and none held out, unless others are given."""
    rows = make_rows(folder, [make_row(folder)] if records is None else records)
    return SweConfig(rows=str(rows), cache=str(folder / "cache"), **{"held_out_from": None, **settings})


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True)


def bash(command):
    return call("execute_bash", command=command)


class Player:
    """One episode, called by hand."""

    def __init__(self, environment, seed=0):
        self.environment = environment
        self.start = environment.reset_many([seed])[0]

    def do(self, action):
        return self.environment.step_many({0: action})[0]

    def run(self, command):
        return self.do(bash(command))

    def edit(self, **arguments):
        return self.do(call("str_replace_editor", **arguments))

    def submit(self):
        return self.do(call("submit"))


def made(config):
    """The environment of a config; skips where no sandbox can be had here, as in a container without privileges."""
    try:
        return config.make()
    except BadInput as refused:
        if "sandbox" in str(refused.found):
            pytest.skip(str(refused.found))
        raise


def processes():
    """Command lines of every process of the machine."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return found


def mounts():
    return Path("/proc/self/mounts").read_text()


def files_below(folder):
    return sorted(
        os.path.relpath(Path(at, name), folder) for at, folders, files in os.walk(folder) for name in folders + files
    )
