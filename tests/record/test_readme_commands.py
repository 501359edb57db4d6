"""The README's `crl` commands, run as typed on a real run: quickstart stands for the tiny run of the tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from crl.recipes.complementary.round import build
from crl.rounds.recipe import recorded_bank
from crl.run.directory import RunDirectory
from tests.tiny_run import NAME, ROOT, ROUNDS, crl_here

TYPED = re.findall(r"^crl (\w+.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
TRAINING = ("init", "train", "resume")
"""Run by the tests of whole runs and of the pages that have their files; a resume has nothing to do here."""


def words_of(typed: str, entry: str, folder: Path) -> list[str]:
    """A command line of the README for the tiny run, with a real entry for `ID` and a folder for `agent`."""
    words = shlex.split(typed, comments=True)
    swap = {"quickstart": NAME, "ID": entry, "conf/quickstart.yaml": "conf/tiny.yaml", "agent": str(folder / "agent")}
    return [swap.get(word, word) for word in words]


def test_the_readme_shows_commands():
    assert {typed.split()[0] for typed in TYPED} >= {"status", "bank", "sql", "evaluate", "verify", "resume", "doctor"}


@pytest.mark.parametrize("typed", [typed for typed in TYPED if typed.split()[0] not in TRAINING])
def test_a_command_of_the_readme_runs(finished: Path, typed: str, tmp_path: Path, request: pytest.FixtureRequest):
    evaluates = typed.startswith("evaluate")
    run = RunDirectory.open(request.getfixturevalue("copied") if evaluates else finished)  # it keeps what it played
    entry = recorded_bank(run, build(run.method), ROUNDS).taken([0])[0].entry_id
    if "agent" in shlex.split(typed, comments=True)[1:2]:  # what the line before wrote
        assert crl_here(run.path.parent, *words_of("export quickstart --to agent", entry, tmp_path)).returncode == 0
    done = crl_here(run.path.parent, *words_of(typed, entry, tmp_path))
    assert done.returncode == 0 and done.stdout.strip()


def test_resume_on_a_finished_run_says_that_there_is_nothing_to_do(copied: Path):
    done = crl_here(copied.parent, "resume", NAME)
    assert "nothing to do" in done.stdout
