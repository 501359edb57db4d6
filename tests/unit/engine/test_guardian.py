"""What a killed process started does not outlive it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[3]
_GUARDED = """
import subprocess, sys, time
from crl.engine.guardian import guard
guard()
guard()
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print(sleeper.pid, flush=True)
if sys.argv[1] == "stays":
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
            guardians = [each for each in psutil.Process(guarded.pid).children() if "guardian" in str(each.cmdline())]
            assert len(guardians) == 1, "asked twice, there is one guardian"
            assert sleeper.is_running()
            guarded.kill()
        assert guarded.wait(PATIENCE_SECONDS) in (0, -9)
        wait_until(
            lambda: not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE,
            "the process that was left behind has ended",
            30,
        )
    finally:
        guarded.stdout.close()
        if sleeper.is_running():
            sleeper.kill()
