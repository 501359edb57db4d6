"""What a killed process started does not outlive it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import PATIENCE_SECONDS, command_line, ended, kill, wait_until

ROOT = Path(__file__).parents[3]
_PARENT = """
import subprocess, sys, time
guarded = subprocess.Popen([sys.executable, "-c", sys.argv[1], "with parent"], start_new_session=True)
time.sleep(3600)
"""
_GUARDED = """
import subprocess, sys, time
from crl.run.guardian import guard
guard(with_parent=sys.argv[1] == "with parent")
guard()
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print(sleeper.pid, flush=True)
if sys.argv[1] != "leaves":
    time.sleep(3600)
"""
_UNGUARDED = """
import os, subprocess, sys, time
from crl.run.guardian import PARENT
for parent in (os.getpid(), os.getpid() + 1):
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, PARENT: str(parent)})
    print(child.pid, flush=True)
time.sleep(3600)
"""
_WATCHING = """
import os, time
from crl.run.guardian import PARENT, end_with_parent
end_with_parent()
assert PARENT not in os.environ, "what this process starts has another parent"
time.sleep(3600)
"""


@pytest.mark.parametrize("ending", ["is killed", "ends by itself"])
def test_what_a_guarded_process_started_ends_with_it(ending: str) -> None:
    word = "stays" if ending == "is killed" else "leaves"
    guarded = subprocess.Popen(
        [sys.executable, "-c", _GUARDED, word], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert guarded.stdout is not None
    sleeper = psutil.Process(int(guarded.stdout.readline()))
    try:
        if word == "stays":
            assert len(guardians_of(guarded)) == 1, "asked twice, there is one guardian"
            assert sleeper.is_running()
            guarded.kill()
        assert guarded.wait(PATIENCE_SECONDS) in (0, -9)
        wait_until(lambda: ended(sleeper), "the process that was left behind has ended", 30)
    finally:
        guarded.stdout.close()
        kill([sleeper])


@pytest.mark.slow
def test_a_process_may_end_with_a_parent_that_guards_nothing() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, _GUARDED], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    sleeper = psutil.Process(int(parent.stdout.readline()))
    started = [sleeper, *psutil.Process(parent.pid).children(recursive=True)]
    assert len(started) >= 3, "the guarded process, its guardian and what it started"
    try:
        parent.kill()
        parent.wait(PATIENCE_SECONDS)
        wait_until(lambda: all(ended(each) for each in started), "all that was started has ended", 30)
    finally:
        parent.stdout.close()
        kill(started)


def test_a_guardian_that_is_killed_is_replaced() -> None:
    guarded = subprocess.Popen([sys.executable, "-c", _GUARDED, "stays"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert guarded.stdout is not None
    sleeper = psutil.Process(int(guarded.stdout.readline()))
    try:
        first = guardians_of(guarded)
        kill(first)
        wait_until(lambda: set(guardians_of(guarded)) - set(first), "there is another guardian")
        assert sleeper.is_running()
        guarded.kill()
        guarded.wait(PATIENCE_SECONDS)
        wait_until(lambda: ended(sleeper), "the process that was left behind has ended", 30)
    finally:
        guarded.kill()
        guarded.wait()
        guarded.stdout.close()
        kill([sleeper])


def test_an_engine_ends_with_its_parent_without_a_guardian() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _UNGUARDED, _WATCHING], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    # One looks in time; the other one's parent had ended before it looked.
    children = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
    try:
        wait_until(lambda: ended(children[1]), "the one without a parent has ended", 30)
        assert not ended(children[0])
        parent.kill()
        parent.wait(PATIENCE_SECONDS)
        wait_until(lambda: ended(children[0]), "the other one has ended, too", 30)
    finally:
        parent.stdout.close()
        kill(children)


def guardians_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [each for each in psutil.Process(process.pid).children() if "guardian" in str(command_line(each))]
